//! Names that a replica shares with the Tailscale operator.
//!
//! Replica `i` of group `g` is the Pod `g-i`; its state Secret has the Pod's name, its config Secret that name and
//! [`CONFIG_SECRET_SUFFIX`].

/// Reporting controller of the Events of a reconciler.
pub const EVENT_CONTROLLER: &str = "tailyard-reconciler";
/// Field manager of replicas, the same as that of the Tailscale operator's proxies.
pub const POD_FIELD_MANAGER: &str = "tailscale-container";
/// Field manager of the reconcilers and of `tailyard uninstall`.
pub const RECONCILER_FIELD_MANAGER: &str = "tailyard";
/// Suffix after `<pod>`: the Secret with the replica's tailscaled config.
pub const CONFIG_SECRET_SUFFIX: &str = "-config";

/// `TS_INTERNAL_APP` of the Pods of a Connector.
pub const CONNECTOR_APP: &str = "k8s-operator-connector-resource";

/// Label of all objects that the reconciler created.
pub const MANAGED: &str = "tailscale.com/managed";
/// Label: kind of the parent object, e.g. [`PARENT_GROUP`].
pub const PARENT_TYPE: &str = "tailscale.com/parent-resource-type";
/// Label: name of the parent object.
pub const PARENT: &str = "tailscale.com/parent-resource";
/// Label: namespace of the parent object, if it has one.
pub const PARENT_NAMESPACE: &str = "tailscale.com/parent-resource-ns";
/// Value of [`PARENT_TYPE`]: a `ProxyGroup`.
pub const PARENT_GROUP: &str = "proxygroup";
/// Value of [`PARENT_TYPE`]: a Service.
pub const PARENT_SERVICE: &str = "svc";
/// Ours, label of the config Secret of a standalone Service's proxy: the Service's name. The Tailscale operator takes every Secret with its
/// own labels for a state Secret.
pub const CONFIG_PARENT: &str = "tailyard.io/parent-service";
/// Ours, label of config and certificate Secrets of a standalone Ingress's proxy: the Ingress's name.
pub const CONFIG_PARENT_INGRESS: &str = "tailyard.io/parent-ingress";
/// Ours, label of the config Secrets and node ports of a Connector: its name.
pub const CONFIG_PARENT_CONNECTOR: &str = "tailyard.io/parent-connector";
/// Ours, label of these Secrets: the namespace of the Service or Ingress.
pub const CONFIG_PARENT_NAMESPACE: &str = "tailyard.io/parent-namespace";
/// Label of a Secret: `config`, `state` or `certs`.
pub const SECRET_TYPE: &str = "tailscale.com/secret-type";
/// Label of an egress child, and annotation of a user's Service: the name of the group.
pub const PROXY_GROUP: &str = "tailscale.com/proxy-group";
/// Ours, label of a namespace: [`DISABLED`] excludes its objects from default groups.
pub const DEFAULT_GROUP: &str = "tailyard.io/default-proxy-group";
/// Value of [`DEFAULT_GROUP`].
pub const DISABLED: &str = "disabled";
/// Ours, annotation of a user's egress Service: its `externalName` before Tailyard replaced it.
pub const FORMER_EXTERNAL_NAME: &str = "tailyard.io/former-external-name";
/// Label of an egress child.
pub const SERVICE_TYPE: &str = "tailscale.com/svc-type";
/// Value of [`SERVICE_TYPE`].
pub const EGRESS: &str = "egress";
/// The finalizer of groups and of users' Services.
pub const FINALIZER: &str = "tailscale.com/finalizer";
/// Annotation of a user's Service: tailnet name of its target.
pub const TAILNET_FQDN: &str = "tailscale.com/tailnet-fqdn";
/// Annotation of a user's Service: tailnet address of its target.
pub const TAILNET_IP: &str = "tailscale.com/tailnet-ip";
/// Annotation of a user's Service: [`TAILNET_IP`] by its former name, for standalone proxies.
pub const FORMER_TAILNET_IP: &str = "tailscale.com/ts-tailnet-target-ip";
/// Label or annotation of a user's Service or Ingress: the class of its standalone proxy.
pub const PROXY_CLASS: &str = "tailscale.com/proxy-class";
/// Annotation of a user's Service: its name in the tailnet.
pub const HOSTNAME: &str = "tailscale.com/hostname";
/// Annotation of a user's Service: its tags in the tailnet, separated by commas.
pub const TAGS: &str = "tailscale.com/tags";
/// Key of a replica's config in the config Secret. Its number is the minimum capability version that can read it.
pub const CONFIG_KEY: &str = "cap-106.hujson";
/// Variable by which the Tailscale operator's image of type kube-apiserver finds its config.
pub const K8S_PROXY_CONFIG: &str = "TS_K8S_PROXY_CONFIG";
/// Key of a replica's config in the config Secret, for the Tailscale operator's image of type kube-apiserver.
pub const K8S_PROXY_CONFIG_KEY: &str = "config.hujson";
/// Ours, key of a config Secret: ID of the replica's device, if that was deleted at the control plane. A replica that has it joins again.
pub const DELETED_DEVICE_KEY: &str = "deleted-device";
/// Labels of metrics objects, which are copied to each sample: kind, name and namespace of the parent.
pub const PROXY_TYPE: &str = "ts_proxy_type";
pub const PROXY_PARENT: &str = "ts_proxy_parent_name";
pub const PROXY_PARENT_NAMESPACE: &str = "ts_proxy_parent_namespace";
/// Value of [`PARENT_TYPE`]: an Ingress.
pub const PARENT_INGRESS: &str = "ingress";
/// Value of [`PARENT_TYPE`], and of [`PROXY_TYPE`]: a Connector.
pub const PARENT_CONNECTOR: &str = "connector";
/// Value of [`SECRET_TYPE`]: a certificate; the Secret's name is its DNS name.
pub const CERTS: &str = "certs";
/// Label of a certificate's Secret: its DNS name, cut to 63 characters.
pub const DOMAIN: &str = "tailscale.com/domain";
/// Field of a certificate's Secret: the SHA-256, raw, of the PEM text of the account key that ordered it.
pub const ACCOUNT_FINGERPRINT: &str = "acme-account-fingerprint";
/// Secret of ACME account keys that groups share if an administrator enables it, one field for each tailnet.
pub const ACCOUNTS: &str = "tailscale-acme-accounts";
/// Field of an unshared account key, in the replica's own state Secret, as named by tailscaled.
pub const ACCOUNT_KEY: &str = "acme-account.key.pem";
/// Ours, annotation of a certificate's Secret: state of its renewal order ([`super::issuance::OrderNote`]).
pub const ISSUANCE: &str = "tailyard.io/acme-order-status";
/// Finalizer of an Ingress that a group advertises.
pub const INGRESS_FINALIZER: &str = "tailscale.com/ingress-pg-finalizer";
/// Finalizer of a Service that a group advertises. The Tailscale operator since 1.104 writes it with the group's name and a dot before it.
pub const SERVICE_FINALIZER: &str = "tailscale.com/service-pg-finalizer";
/// Finalizer by which the Tailscale operator withdraws the Kubernetes API of a `ProxyGroup`. Ours covers that: this one is only removed.
pub const API_SERVER_FINALIZER: &str = "tailscale.com/kube-apiserver-finalizer";
/// `ServiceAccount` that the Tailscale operator gives to all Pods that impersonate. Those of Tailyard have one for each group.
pub const API_SERVER_ACCOUNT: &str = "kube-apiserver-auth-proxy";
/// Service in the reconciler's namespace, which writes it: requests the device that serves the Kubernetes API.
pub const API_SERVER_SERVICE: &str = "tailyard-api-server";
/// Ours, annotation of that Service: the mode, `auth` or `noauth`.
pub const API_SERVER_MODE: &str = "tailyard.io/kube-apiserver";
/// Ours, annotation of that Service: `true` serves HTTP in place of HTTPS.
pub const API_SERVER_HTTP: &str = "tailyard.io/kube-apiserver-http";
/// Ours, annotation of that Service: Secret of its own certificate.
pub const API_SERVER_CERTIFICATE: &str = "tailyard.io/kube-apiserver-certificate";
/// Annotation of a user's Service: `true` advertises it, whatever its type.
pub const EXPOSE: &str = "tailscale.com/expose";
/// Annotation of an Ingress: `true` redirects HTTP requests to the same URL over HTTPS.
pub const HTTP_REDIRECT: &str = "tailscale.com/http-redirect";
/// Annotation of an Ingress: `enabled` serves it without TLS too.
pub const HTTP_ENDPOINT: &str = "tailscale.com/http-endpoint";
/// Annotation of an Ingress: `true` enables Funnel, i.e. access from the internet.
pub const FUNNEL: &str = "tailscale.com/funnel";
/// `loadBalancerClass` of Services of type `LoadBalancer`.
pub const LOAD_BALANCER_CLASS: &str = "tailscale";
/// Controller of our `IngressClass`.
pub const INGRESS_CONTROLLER: &str = "tailscale.com/ts-ingress";
/// Annotation of an `IngressClass`: default for Ingresses that name none.
pub const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";
/// Annotation of a group: whether its replicas share the ACME account of all groups of their tailnet.
pub const SHARE_ACCOUNT: &str = "tailscale.com/share-acme-account";
/// Ours, label of the `ConfigMap` that records the certificates of standalone Ingresses: the namespace of the Ingresses.
pub const CERTIFICATE_ORDERS: &str = "tailyard.io/certificate-orders-of";
/// Finalizer of the Secret [`ACCOUNTS`].
pub const ACCOUNTS_FINALIZER: &str = "tailscale.com/acme-account-protection";
/// Ours, annotation of a group: names, separated by commas; the group adopts their Tailscale Services that have no owner.
pub const ADOPT: &str = "tailyard.io/adopt-services";
/// Ours, annotation of an adopted Tailscale Service: it is given back, not deleted.
pub const ADOPTED: &str = "tailyard.io/adopted";
/// Ours, annotation of an advertised Service: TCP ports that get a PROXY protocol v2 header with the client's address: `true` for all, or
/// port numbers and names separated by commas.
pub const PROXY_PROTOCOL: &str = "tailyard.io/proxy-protocol";
/// Ours, annotation of a standalone Service or Ingress: `true` gives its proxy a second Pod that takes over. Label of that Pod and its
/// `StatefulSet`.
pub const STANDBY: &str = "tailyard.io/standby";
/// Ours, annotation of a `ProxyGroupPolicy`: it also limits objects with a proxy of their own, whose `ProxyGroup` is the empty name.
pub const LIMIT_STANDALONE: &str = "tailyard.io/limit-standalone";
/// Ours, annotation of a replica's Pod that does not answer health probes ([`super::failover::UnreachableNote`]).
pub const UNREACHABLE: &str = "tailyard.io/unreachable";
/// Annotation of a standalone Ingress: `true` serves clients of the cluster at the Pod's addresses.
pub const FORWARD_CLUSTER_TRAFFIC: &str = "tailscale.com/experimental-forward-cluster-traffic-via-ingress";
/// Ours, annotation of a group's issuer Lease: the first replica, which requests it back.
pub const ISSUER_ASKED: &str = "tailyard.io/handback-requested-by";
/// Ours, label of a Secret of type `kubernetes.io/tls` in the namespace of the groups' objects: `true` permits Ingresses to use it as a
/// certificate for their own hosts.
pub const OWN_CERTIFICATE: &str = "tailyard.io/allow-ingress-tls";
/// Ours, annotation of such a Secret: namespaces whose Ingresses may use it, separated by commas; a final `*` matches any suffix. Absent:
/// all.
pub const CERTIFICATE_NAMESPACES: &str = "tailyard.io/namespaces";
/// Ours, annotation of the config Secret: ID of its auth key.
pub const AUTH_KEY_ID: &str = "tailyard.io/auth-key-id";
/// Ours, annotation of the config Secret: the last auth key that was created for the replica, without the secret, JSON.
pub const AUTH_KEY: &str = "tailyard.io/auth-key";
/// Ours, annotation of the config Secret until there is an auth key: the replica is new, and no device that exists is its own.
pub const NEW_REPLICA: &str = "tailyard.io/new-replica";
/// Ours, annotation of the config Secret: verified record of the replica's device, JSON.
pub const DEVICE: &str = "tailyard.io/device";

/// Prefixes of annotations of the Tailscale operator and of ours.
pub const ANNOTATION_PREFIXES: [&str; 2] = ["tailscale.com/", "tailyard.io/"];

/// Name of a replica's Pod and state Secret.
pub fn replica(group: &str, ordinal: u32) -> String {
    format!("{group}-{ordinal}")
}

pub fn replica_config(group: &str, ordinal: u32) -> String {
    format!("{group}-{ordinal}{CONFIG_SECRET_SUFFIX}")
}

/// End of the name of a group's egress config.
pub const EGRESS_CONFIG_SUFFIX: &str = "-egress-config";

pub fn egress_config(group: &str) -> String {
    format!("{group}{EGRESS_CONFIG_SUFFIX}")
}

/// Ours: `ClusterRole` by which replicas read endpoints of backends.
pub const ENDPOINTS: &str = "tailyard-endpoints";

/// Ours: name of a group's `RoleBinding` for that role in a namespace.
pub fn endpoints(group: &str) -> String {
    format!("{ENDPOINTS}-{group}")
}

/// Workload of a `RoleBinding` of this name, if it is such a name.
pub fn endpoint_reader(name: &str) -> Option<&str> {
    name.strip_prefix(ENDPOINTS)?.strip_prefix('-')
}

/// Ours: name of the `ClusterRole` by which the operator's device impersonates, and of its binding.
pub const API_SERVER_ROLE: &str = "tailyard-api-server-impersonation";

/// Ours: name of the `ClusterRole` by which the Pods of a group impersonate, and of its binding.
pub fn impersonation(group: &str) -> String {
    format!("tailyard-impersonation-{group}")
}

/// Suffix of [`account`].
pub const ACCOUNT_SUFFIX: &str = "-acme-accounts";

/// Ours: name of the Secret with a group's ACME account keys, one field for each tailnet.
pub fn account(group: &str) -> String {
    format!("{group}{ACCOUNT_SUFFIX}")
}

/// Ours: name of the Lease of the replica that orders a group's certificates.
pub fn issuer(group: &str) -> String {
    format!("{group}-issuer")
}

/// Ours, annotation of the reconcilers' Lease: requests an uninstall; its value is the time of the request.
pub const UNINSTALL: &str = "tailyard.io/uninstall";
/// Ours, annotation of that Lease: what the uninstall still has to release; [`UNINSTALLED`] at its end.
pub const UNINSTALL_REMAINING: &str = "tailyard.io/uninstall-remaining";
/// Value of [`UNINSTALL_REMAINING`] at the end.
pub const UNINSTALLED: &str = "nothing";
/// Begin of its value if settings exclude everything that remains.
pub const UNINSTALL_EXCLUDED: &str = "cannot release ";

/// `ConfigMap` of [`CERTIFICATE_ORDERS`].
pub fn certificate_orders(namespace: &str) -> String {
    format!("tailyard-certificates-{namespace}")
}

/// End of the name of the ingress config of a group or proxy.
pub const INGRESS_CONFIG_SUFFIX: &str = "-ingress-config";

pub fn ingress_config(group: &str) -> String {
    format!("{group}{INGRESS_CONFIG_SUFFIX}")
}
