//! Names that a replica shares with the Tailscale operator.
//!
//! Replica `i` of group `g` is the Pod `g-i`; its state Secret has the Pod's name, its config Secret that name and
//! [`CONFIG_SECRET_SUFFIX`].

/// The field manager under which a replica writes, as the peer's does.
pub const FIELD_MANAGER: &str = "tailscale-container";
/// `<pod>` and this is the Secret of the replica's tailscaled config.
pub const CONFIG_SECRET_SUFFIX: &str = "-config";

/// Label of everything that the reconciler made.
pub const MANAGED: &str = "tailscale.com/managed";
/// Label: the kind of the object for which it was made, such as [`PARENT_GROUP`].
pub const PARENT_TYPE: &str = "tailscale.com/parent-resource-type";
/// Label: the name of the object for which it was made.
pub const PARENT: &str = "tailscale.com/parent-resource";
/// Label: the namespace of the object for which it was made, if that has one.
pub const PARENT_NAMESPACE: &str = "tailscale.com/parent-resource-ns";
/// Value of [`PARENT_TYPE`]: a `ProxyGroup`.
pub const PARENT_GROUP: &str = "proxygroup";
/// Value of [`PARENT_TYPE`]: a Service.
pub const PARENT_SERVICE: &str = "svc";
/// Label of a Secret: `config`, `state` or `certs`.
pub const SECRET_TYPE: &str = "tailscale.com/secret-type";
/// Label of an egress child, and annotation of a user's Service: the name of the group.
pub const PROXY_GROUP: &str = "tailscale.com/proxy-group";
/// Label of an egress child.
pub const SERVICE_TYPE: &str = "tailscale.com/svc-type";
/// Value of [`SERVICE_TYPE`].
pub const EGRESS: &str = "egress";
/// The finalizer of groups and of users' Services.
pub const FINALIZER: &str = "tailscale.com/finalizer";
/// Annotation of a user's Service: the tailnet name it leads to.
pub const TAILNET_FQDN: &str = "tailscale.com/tailnet-fqdn";
/// Annotation of a user's Service: the tailnet address it leads to.
pub const TAILNET_IP: &str = "tailscale.com/tailnet-ip";
/// Annotation of a user's Service: its name in the tailnet.
pub const HOSTNAME: &str = "tailscale.com/hostname";
/// Annotation of a user's Service: its tags in the tailnet, separated by commas.
pub const TAGS: &str = "tailscale.com/tags";
/// The key of the config Secret that holds a replica's config: the least capability version that reads it is its number.
pub const CONFIG_KEY: &str = "cap-106.hujson";
/// Value of [`PARENT_TYPE`]: an Ingress.
pub const PARENT_INGRESS: &str = "ingress";
/// Value of [`SECRET_TYPE`]: a certificate, in a Secret that has the name of its DNS name.
pub const CERTS: &str = "certs";
/// Label of a certificate's Secret: its DNS name, at most 63 characters of it.
pub const DOMAIN: &str = "tailscale.com/domain";
/// Field of a certificate's Secret: the SHA-256, raw, of the PEM text of the account key that ordered it.
pub const ACCOUNT_FINGERPRINT: &str = "acme-account-fingerprint";
/// The Secret of the ACME account keys that groups share where an administrator says so, one field for each tailnet.
pub const ACCOUNTS: &str = "tailscale-acme-accounts";
/// The field of an account key where no Secret is shared: of the replica's own state Secret, as tailscaled names it.
pub const ACCOUNT_KEY: &str = "acme-account.key.pem";
/// Ours, annotation of a certificate's Secret: who is ordering another one, and what came of it ([`super::issuance::OrderNote`]).
pub const ISSUANCE: &str = "tailyard.io/acme-order-status";
/// The finalizer of an Ingress that a group publishes.
pub const INGRESS_FINALIZER: &str = "tailscale.com/ingress-pg-finalizer";
/// The finalizer of a Service that a group publishes.
pub const SERVICE_FINALIZER: &str = "tailscale.com/service-pg-finalizer";
/// Annotation of a user's Service: `true` has it published whatever its type.
pub const EXPOSE: &str = "tailscale.com/expose";
/// Annotation of an Ingress: `true` sends what comes without TLS to the same URL with it.
pub const HTTP_REDIRECT: &str = "tailscale.com/http-redirect";
/// Annotation of an Ingress: `enabled` serves it without TLS too.
pub const HTTP_ENDPOINT: &str = "tailscale.com/http-endpoint";
/// Annotation of an Ingress: `true` serves it to the internet.
pub const FUNNEL: &str = "tailscale.com/funnel";
/// The class of Services of type `LoadBalancer`.
pub const LOAD_BALANCER_CLASS: &str = "tailscale";
/// The controller that the class of Ingresses names.
pub const INGRESS_CONTROLLER: &str = "tailscale.com/ts-ingress";
/// Annotation of a class of Ingresses: it is that of Ingresses which name none.
pub const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";
/// Annotation of a group: whether its replicas order certificates with the account of all groups of their tailnet.
pub const SHARE_ACCOUNT: &str = "tailscale.com/share-acme-account";
/// The finalizer of the Secret of the ACME account keys.
pub const ACCOUNTS_FINALIZER: &str = "tailscale.com/acme-account-protection";
/// Ours, annotation of a group: names, separated by commas, whose Tailscale Services it takes over although no cluster owns them.
pub const ADOPT: &str = "tailyard.io/adopt-services";
/// Ours, annotation of a Tailscale Service that was taken over: it is given back, not deleted.
pub const ADOPTED: &str = "tailyard.io/adopted";
/// Ours, annotation of a Service that is published: its TCP ports that get the client's address in front of each connection (PROXY
/// protocol, version 2): `true` for all, or numbers and names by commas.
pub const PROXY_PROTOCOL: &str = "tailyard.io/proxy-protocol";
/// Ours, annotation of a group's issuer Lease: the first replica, which wants it back.
pub const ISSUER_ASKED: &str = "tailyard.io/handback-requested-by";
/// Ours, label of a Secret of type `kubernetes.io/tls` in the namespace of the groups' objects: `true` lets Ingresses name it as
/// the certificate of a host of their own.
pub const OWN_CERTIFICATE: &str = "tailyard.io/allow-ingress-tls";
/// Ours, annotation of such a Secret: the namespaces whose Ingresses may name it, by commas; a final `*` stands for any end. Any if it is absent.
pub const CERTIFICATE_NAMESPACES: &str = "tailyard.io/namespaces";
/// Ours, annotation of the config Secret: the id of the auth key in it.
pub const AUTH_KEY_ID: &str = "tailyard.io/auth-key-id";
/// Ours, annotation of the config Secret: the replica's device as the control plane described it, JSON.
pub const DEVICE: &str = "tailyard.io/device";

/// The name of a replica: of its Pod and of its state Secret.
pub fn replica(group: &str, ordinal: u32) -> String {
    format!("{group}-{ordinal}")
}

pub fn replica_config(group: &str, ordinal: u32) -> String {
    format!("{group}-{ordinal}{CONFIG_SECRET_SUFFIX}")
}

pub fn egress_config(group: &str) -> String {
    format!("{group}-egress-config")
}

/// Ours: the name of the `ClusterRole` by which replicas read where backends are.
pub const ENDPOINTS: &str = "tailyard-endpoints";

/// Ours: the name of the `RoleBinding` by which a group has that role in a namespace.
pub fn endpoints(group: &str) -> String {
    format!("{ENDPOINTS}-{group}")
}

/// Ours: the name of the Secret of a group's ACME account keys, one field for each tailnet.
pub fn account(group: &str) -> String {
    format!("{group}-acme-accounts")
}

/// Ours: the name of the Lease that says which replica of a group orders certificates.
pub fn issuer(group: &str) -> String {
    format!("{group}-issuer")
}

pub fn ingress_config(group: &str) -> String {
    format!("{group}-ingress-config")
}
