//! The reconciler, as the compiled binary under exactly the rights of config/rbac, on a real kube-apiserver and etcd. There is
//! no kubelet: the tests play it, by making Pods and writing what replicas would say. The control plane is a stand-in.

mod changes;
mod groups;
mod hostile;
mod lacking;
mod large;
mod leading;
mod looking;
mod names;
mod planes;
mod publish;
mod services;
mod takeover;
mod tenants;
