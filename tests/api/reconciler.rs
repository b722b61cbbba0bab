//! The reconciler as the compiled binary, with exactly the permissions of config/rbac, on a real kube-apiserver and etcd. There is no
//! kubelet: the tests create Pods and write the replicas' state. The control plane is a stand-in.

mod admission;
mod api_server;
mod change_log;
mod changes;
mod collisions;
mod connectors;
mod crowd;
mod defaults;
mod failover;
mod group_policies;
mod groups;
mod hostile;
mod lacking;
mod large;
mod leading;
mod looking;
mod many;
mod migration;
mod names;
mod nameserver;
mod planes;
mod policy;
mod proxies;
mod publish;
mod services;
mod standalone;
mod standalone_ingress;
mod takeover;
mod tenants;
mod uninstall;
