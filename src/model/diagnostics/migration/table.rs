//! Values of the Tailscale operator's chart (1.104), each with what replaces it: the one table of `tailyard migrate values`, of the sentences
//! by which our chart refuses such keys, and of the comparison of an operator's environment.

use std::collections::BTreeMap;

/// Notation of a value of the Tailscale operator's chart, and so its conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueShape {
    Text,
    Flag,
    /// A URL without a final slash.
    Url,
    /// A list, or a text with commas.
    Names,
    Mapping,
    List,
    /// `info`, `debug` or `dev`.
    LogLevel,
}

/// What replaces a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// A value of our chart, with the same meaning.
    Key(&'static str, ValueShape),
    /// A value of our chart that several values make up.
    Part(&'static str),
    /// Nothing: why it is not needed.
    Dropped(&'static str),
    /// Nothing in the chart: what has the same effect.
    Refused(&'static str),
}

/// A value of the Tailscale operator's chart.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamValue {
    pub key: &'static str,
    pub answer: Replacement,
    /// What a user checks if the value is set; empty for nothing.
    pub note: &'static str,
}

/// A variable of the Tailscale operator, which `operatorConfig.extraEnv` may set, too.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamVariable {
    pub name: &'static str,
    /// Value that changes nothing.
    pub default: &'static str,
    pub answer: Replacement,
}

const fn value(key: &'static str, answer: Replacement) -> UpstreamValue {
    UpstreamValue { key, answer, note: "" }
}

const fn noted(key: &'static str, answer: Replacement, note: &'static str) -> UpstreamValue {
    UpstreamValue { key, answer, note }
}

/// A value with the same meaning under the key `ours`.
const fn same(key: &'static str, ours: &'static str, shape: ValueShape) -> UpstreamValue {
    value(key, Replacement::Key(ours, shape))
}

const IMAGE: Replacement =
    Replacement::Dropped("it is the Tailscale operator's image; image.repository, image.tag and image.digest name Tailyard's");
const ANNOTATIONS: Replacement = Replacement::Dropped("the Deployment has no annotations of its own; podAnnotations are those of its Pods");
const CREDENTIALS: Replacement = Replacement::Part("controlPlane.credentials");
const PROXY_IMAGE: Replacement = Replacement::Part("proxyImage");
const NAMES: Replacement = Replacement::Part("operatorConfig.secret and controlPlane.credentials.oauth.existingSecret");

/// All values, in the order of that chart.
pub const VALUES: [UpstreamValue; 42] = [
    value("nameOverride", NAMES),
    value("fullnameOverride", NAMES),
    value("oauth.clientId", CREDENTIALS),
    value("oauth.clientSecret", Replacement::Part("controlPlane.credentials.oauth.existingSecret")),
    value("oauth.audience", Replacement::Part("controlPlane.credentials.workloadIdentity.audience")),
    same("loginServer", "controlPlane.url", ValueShape::Url),
    same("oauthSecretVolume", "controlPlane.credentials.oauth.volume", ValueShape::Mapping),
    value("installCRDs", Replacement::Dropped("Helm installs the definitions of the chart; helm install --skip-crds omits them")),
    same("operatorConfig.defaultTags", "operatorConfig.defaultTags", ValueShape::Names),
    value("operatorConfig.image.repo", IMAGE),
    value("operatorConfig.image.repository", IMAGE),
    value("operatorConfig.image.tag", IMAGE),
    value("operatorConfig.image.digest", IMAGE),
    same("operatorConfig.image.pullPolicy", "image.pullPolicy", ValueShape::Text),
    same("operatorConfig.logging", "log.filter", ValueShape::LogLevel),
    same("operatorConfig.hostname", "operatorConfig.hostname", ValueShape::Text),
    same("operatorConfig.nodeSelector", "nodeSelector", ValueShape::Mapping),
    same("operatorConfig.resources", "resources", ValueShape::Mapping),
    value("operatorConfig.annotations", ANNOTATIONS),
    same("operatorConfig.podAnnotations", "podAnnotations", ValueShape::Mapping),
    same("operatorConfig.podLabels", "podLabels", ValueShape::Mapping),
    same("operatorConfig.serviceAccountAnnotations", "serviceAccount.annotations", ValueShape::Mapping),
    same("operatorConfig.tolerations", "tolerations", ValueShape::List),
    same("operatorConfig.affinity", "affinity", ValueShape::Mapping),
    same("operatorConfig.priorityClassName", "priorityClassName", ValueShape::Text),
    same("operatorConfig.podSecurityContext", "podSecurityContext", ValueShape::Mapping),
    same("operatorConfig.securityContext", "securityContext", ValueShape::Mapping),
    value("operatorConfig.extraEnv", Replacement::Part("extraEnv")),
    same("operatorConfig.sharedACMEAccountKey", "ingress.sharedAcmeAccount", ValueShape::Flag),
    value("annotations", ANNOTATIONS),
    same("ingressClass.name", "ingress.className", ValueShape::Text),
    noted(
        "ingressClass.enabled",
        Replacement::Key("ingress.createClass", ValueShape::Flag),
        "helm install fails with true while the IngressClass of the Tailscale operator's release exists: set it to false there",
    ),
    value("proxyConfig.image.repo", PROXY_IMAGE),
    value("proxyConfig.image.repository", PROXY_IMAGE),
    value("proxyConfig.image.tag", PROXY_IMAGE),
    value("proxyConfig.image.digest", PROXY_IMAGE),
    same("proxyConfig.defaultTags", "tags", ValueShape::Names),
    same("proxyConfig.firewallMode", "firewallMode", ValueShape::Text),
    noted(
        "proxyConfig.defaultProxyClass",
        Replacement::Key("defaultProxyClass", ValueShape::Text),
        "it is also the class of ProxyGroups without spec.proxyClass",
    ),
    noted(
        "apiServerProxyConfig.allowImpersonation",
        Replacement::Key("apiServerProxyConfig.allowImpersonation", ValueShape::Text),
        "true permits no user or group of Kubernetes itself: list those of your grants, such as system:masters, in \
         apiServerProxyConfig.impersonation",
    ),
    same("apiServerProxyConfig.mode", "apiServerProxyConfig.mode", ValueShape::Text),
    same("imagePullSecrets", "imagePullSecrets", ValueShape::List),
];

const fn variable(name: &'static str, default: &'static str, answer: Replacement) -> UpstreamVariable {
    UpstreamVariable { name, default, answer }
}

const OWN: Replacement = Replacement::Dropped("the chart sets it");
const CREDENTIAL_VARIABLE: Replacement = Replacement::Refused("controlPlane.credentials replaces it");

/// Variables that the Tailscale operator reads. Others of `operatorConfig.extraEnv`, such as `HTTPS_PROXY`, stay.
pub const VARIABLES: [UpstreamVariable; 25] = [
    variable("OPERATOR_INITIAL_TAGS", "tag:k8s-operator", Replacement::Key("operatorConfig.defaultTags", ValueShape::Names)),
    variable("OPERATOR_HOSTNAME", "tailscale-operator", Replacement::Key("operatorConfig.hostname", ValueShape::Text)),
    variable("OPERATOR_SECRET", "operator", Replacement::Key("operatorConfig.secret", ValueShape::Text)),
    variable("OPERATOR_LOGGING", "info", Replacement::Key("log.filter", ValueShape::LogLevel)),
    variable("OPERATOR_NAMESPACE", "", OWN),
    variable("OPERATOR_SERVICE_ACCOUNT_NAME", "", OWN),
    variable("OPERATOR_LOGIN_SERVER", "", Replacement::Key("controlPlane.url", ValueShape::Url)),
    variable("OPERATOR_INGRESS_CLASS_NAME", "tailscale", Replacement::Key("ingress.className", ValueShape::Text)),
    variable("CLIENT_ID", "", CREDENTIAL_VARIABLE),
    variable("CLIENT_ID_FILE", "/oauth/client_id", CREDENTIAL_VARIABLE),
    variable("CLIENT_SECRET_FILE", "/oauth/client_secret", CREDENTIAL_VARIABLE),
    variable("PROXY_IMAGE", "", Replacement::Key("proxyImage", ValueShape::Text)),
    variable("PROXY_TAGS", "tag:k8s", Replacement::Key("tags", ValueShape::Names)),
    variable("PROXY_FIREWALL_MODE", "auto", Replacement::Key("firewallMode", ValueShape::Text)),
    variable("PROXY_DEFAULT_CLASS", "", Replacement::Key("defaultProxyClass", ValueShape::Text)),
    variable("APISERVER_PROXY", "false", Replacement::Key("apiServerProxyConfig.mode", ValueShape::Text)),
    variable("AUTH_PROXY", "false", Replacement::Key("apiServerProxyConfig.mode", ValueShape::Text)),
    variable("POD_NAME", "", OWN),
    variable("POD_UID", "", OWN),
    variable("OPERATOR_SHARED_ACME_ACCOUNT_KEY", "false", Replacement::Key("ingress.sharedAcmeAccount", ValueShape::Flag)),
    variable(
        "PROXY_PRIORITY_CLASS_NAME",
        "",
        Replacement::Refused("set priorityClassName in a ProxyClass (spec.statefulSet.pod), and defaultProxyClass to its name"),
    ),
    variable(
        "OPERATOR_DEFAULT_LOAD_BALANCER",
        "false",
        Replacement::Refused(
            "give new Services loadBalancerClass: tailscale, and annotate existing ones with tailscale.com/expose: \"true\"",
        ),
    ),
    variable("K8S_PROXY_IMAGE", "", Replacement::Dropped("ProxyGroups of type kube-apiserver run Tailyard's image")),
    variable("TS_PORT", "", Replacement::Dropped("the reconciler is no device of the tailnet")),
    variable("TS_EXPERIMENTAL_KUBE_API_EVENTS", "", Replacement::Dropped("the Tailscale operator does not read it either")),
];

/// Sentences by which our chart refuses values of the Tailscale operator's chart, by key. It accepts those with the same key.
pub fn refusals() -> BTreeMap<&'static str, String> {
    let sentence = |value: &UpstreamValue| match value.answer {
        Replacement::Key(ours, _) if ours == value.key => None,
        Replacement::Key(ours, _) | Replacement::Part(ours) => Some(format!("use {ours}")),
        Replacement::Dropped(why) => Some(format!("remove it: {why}")),
        Replacement::Refused(why) => Some(why.to_owned()),
    };
    VALUES.iter().filter_map(|value| Some((value.key, sentence(value)?))).collect()
}
