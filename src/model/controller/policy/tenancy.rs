//! Tenancy of a group: `spec.tailyard.tenants`, else the reconciler's default.
//!
//! The first tenant whose selector matches a namespace applies to its objects. Tenancy restricts new grants only: existing ones stay until
//! the object is deleted, so that an edit of a selector or label is never an outage.

pub mod parse;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::api::proxygroup::Tenant;

/// Labels of a namespace.
pub type Labels = BTreeMap<String, String>;

/// Limits of groups without tenants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DefaultTenancy {
    /// Every namespace, with limits: no own tags, no names of other clusters, limited ports, names and certificates.
    #[default]
    Bounded,
    /// Every namespace without limits, as the Tailscale operator.
    Open,
}

/// Owner of tenants, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenancyScope<'a> {
    /// A group of this name.
    Group(&'a str),
    /// Proxies of objects without a group.
    Standalone,
}

/// Default limit of ports for a namespace: half of the default range.
const PORTS: usize = 5_000;
/// Default limit of tailnet names for a namespace.
const NAMES: usize = 100;
/// Default limit of certificate orders for a namespace within a week: Let's Encrypt's limit for a tailnet.
const CERTIFICATES: usize = 50;

/// Limits of one namespace in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantQuota {
    names: Patterns,
    tags: Patterns,
    shared_names: Patterns,
    funnel: bool,
    /// Of a group without tenants.
    is_default: bool,
    /// Maximum ports of egress Services.
    pub max_ports: usize,
    /// Maximum names in the tailnet.
    pub max_names: usize,
    /// Maximum certificate orders within a week.
    pub max_certificates: usize,
}

/// Tenants of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenancy {
    tenants: Vec<TenantQuota>,
    /// Index of the tenant of each namespace.
    selected: BTreeMap<String, usize>,
    default: Option<TenantQuota>,
}

/// Patterns of allowed names: each a literal, or a prefix followed by `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// Parses patterns separated by commas.
    pub fn parse(text: &str) -> Self {
        Self(text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).map(str::to_owned).collect())
    }

    pub fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    pub fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.strip_suffix('*').map_or(pattern == text, |begin| text.starts_with(begin)))
    }

    fn any() -> Self {
        Self(vec!["*".to_owned()])
    }
}

impl TenantQuota {
    fn of(default: DefaultTenancy) -> Self {
        let (limit, others) = match default {
            DefaultTenancy::Bounded => (None, Patterns::default()),
            DefaultTenancy::Open => (Some(usize::MAX), Patterns::any()),
        };
        Self {
            names: Patterns::any(),
            tags: others.clone(),
            shared_names: others,
            funnel: true,
            is_default: true,
            max_ports: limit.unwrap_or(PORTS),
            max_names: limit.unwrap_or(NAMES),
            max_certificates: limit.unwrap_or(CERTIFICATES),
        }
    }

    fn read(tenant: &Tenant) -> Self {
        let limit = |set: Option<i64>, default| set.map_or(default, |limit| usize::try_from(limit).unwrap_or(0));
        Self {
            names: tenant.names.clone().map_or_else(Patterns::any, Patterns),
            tags: Patterns(tenant.tags.clone()),
            shared_names: Patterns(tenant.shared_names.clone()),
            funnel: tenant.funnel,
            is_default: false,
            max_ports: limit(tenant.max_ports, PORTS),
            max_names: limit(tenant.max_names, NAMES),
            max_certificates: limit(tenant.max_certificates_per_week, CERTIFICATES),
        }
    }

    /// Checks a name and tags.
    ///
    /// # Errors
    ///
    /// The fault, with an action.
    pub fn allows(&self, namespace: &str, scope: TenancyScope<'_>, label: &str, tags: &[String]) -> Result<(), String> {
        if let Some(tag) = self.refused(tags) {
            let field = if self.is_default { "permittedTags of the chart (--permitted-tags)" } else { scope.field() };
            return Err(denied(namespace, scope, &format!("give an object the tag {tag}"), field));
        }
        if self.names.matches(label) { Ok(()) } else { Err(denied(namespace, scope, &format!("use the name {label}"), scope.field())) }
    }

    /// Whether an object may request all of these tags.
    pub fn permits(&self, tags: &[String]) -> bool {
        self.refused(tags).is_none()
    }

    fn refused<'a>(&self, tags: &'a [String]) -> Option<&'a String> {
        tags.iter().find(|tag| !self.tags.matches(tag))
    }

    /// Field of a group for a higher limit. Tenants exclude every namespace that they do not select.
    pub fn limit_field(&self) -> &'static str {
        if self.is_default {
            "spec.tailyard.tenants, with a last tenant for all other namespaces (namespaceSelector: {})"
        } else {
            "spec.tailyard.tenants"
        }
    }

    /// Checks a request for Funnel.
    ///
    /// # Errors
    ///
    /// The fault, with an action.
    pub fn allows_funnel(&self, namespace: &str, scope: TenancyScope<'_>, requested: bool) -> Result<(), String> {
        if requested && !self.funnel { Err(denied(namespace, scope, "use Funnel", scope.field())) } else { Ok(()) }
    }

    /// Whether a name may be shared with another cluster.
    pub fn shares(&self, label: &str) -> bool {
        self.shared_names.matches(label)
    }
}

impl Tenancy {
    /// Evaluates tenants against the labels of all namespaces.
    pub fn of<'a>(
        tenants: &[Tenant],
        default: DefaultTenancy,
        namespaces: impl IntoIterator<Item = (&'a String, &'a Arc<Labels>)>,
    ) -> Self {
        if tenants.is_empty() {
            return Self { default: Some(TenantQuota::of(default)), ..Self::default() };
        }
        let first = |labels: &Labels| tenants.iter().position(|tenant| selects(&tenant.namespace_selector, labels));
        let selected = namespaces.into_iter().filter_map(|(name, labels)| Some((name.clone(), first(labels)?)));
        Self { tenants: tenants.iter().map(TenantQuota::read).collect(), selected: selected.collect(), default: None }
    }

    /// Limits of a namespace.
    ///
    /// # Errors
    ///
    /// The namespace has no tenant; the message names an action.
    pub fn allowance(&self, namespace: &str, scope: TenancyScope<'_>) -> Result<&TenantQuota, String> {
        let found = self.selected.get(namespace).and_then(|at| self.tenants.get(*at)).or(self.default.as_ref());
        let what = if scope == TenancyScope::Standalone { "use the tailnet" } else { "use it" };
        found.ok_or_else(|| denied(namespace, scope, what, scope.field()))
    }
}

impl TenancyScope<'_> {
    /// Setting with the tenants.
    fn field(self) -> &'static str {
        match self {
            Self::Group(_) => "spec.tailyard.tenants",
            Self::Standalone => "standalone.tenants of the chart (--standalone-tenants)",
        }
    }
}

/// The highest number of names in the tailnet that one of the tenants may have.
pub fn max_names(tenants: &[Tenant]) -> usize {
    tenants.iter().map(|tenant| TenantQuota::read(tenant).max_names).max().unwrap_or_default()
}

/// Requested tags that need the permission of a tenant: none that are the object's own, nor, where there are no tenants, permitted ones.
pub fn restricted_tags(mut requested: Vec<String>, own: &[&[String]], tenants: &[Tenant], permitted: &Patterns) -> Vec<String> {
    let is_permitted = |tag: &String| tenants.is_empty() && permitted.matches(tag);
    requested.retain(|tag| !is_permitted(tag) && !own.iter().any(|own| own.contains(tag)));
    requested
}

fn denied(namespace: &str, scope: TenancyScope<'_>, what: &str, field: &str) -> String {
    let place = match scope {
        TenancyScope::Group(group) => format!("in ProxyGroup {group}"),
        TenancyScope::Standalone => "without a ProxyGroup".to_owned(),
    };
    format!("Namespace {namespace} may not {what} {place}: an administrator can allow it in {field}.")
}

/// Whether a selector matches labels. An unknown operator matches nothing.
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let meets = |key: &str, operator: &str, values: &[String]| {
        let listed = || labels.get(key).is_some_and(|value| values.contains(value));
        match operator {
            "In" => listed(),
            "NotIn" => !listed(),
            "Exists" => labels.contains_key(key),
            "DoesNotExist" => !labels.contains_key(key),
            _ => false,
        }
    };
    let mut expressions = selector.match_expressions.iter().flatten();
    equal && expressions.all(|one| meets(&one.key, &one.operator, one.values.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

    use serde_json::{Value, json};

    use super::*;

    const G: TenancyScope<'_> = TenancyScope::Group("g");

    fn tenancy(tenants: Value) -> Tenancy {
        let labels = |pairs: &[(&str, &str)]| -> Arc<Labels> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Labels>().into()
        };
        let namespaces = BTreeMap::from([
            ("shop".to_owned(), labels(&[("team", "shop"), ("stage", "prod")])),
            ("shop-test".to_owned(), labels(&[("team", "shop")])),
            ("bare".to_owned(), labels(&[])),
        ]);
        Tenancy::of(&serde_json::from_value::<Vec<Tenant>>(tenants).expect("tenants"), DefaultTenancy::Bounded, &namespaces)
    }

    #[test]
    fn namespace_selectors_match_as_in_kubernetes() {
        let selected = |selector: Value| {
            let tenancy = tenancy(json!([{"namespaceSelector": selector}]));
            ["shop", "shop-test", "bare"].map(|namespace| tenancy.allowance(namespace, G).is_ok())
        };
        let expression =
            |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "stage", "operator": operator, "values": values}]});
        assert_eq!(selected(json!({})), [true; 3]);
        assert_eq!(selected(json!({"matchLabels": {"team": "shop"}})), [true, true, false]);
        assert_eq!(selected(expression("In", &["prod", "test"])), [true, false, false]);
        assert_eq!(selected(expression("NotIn", &["prod"])), [false, true, true]);
        assert_eq!(selected(expression("Exists", &[])), [true, false, false]);
        assert_eq!(selected(expression("DoesNotExist", &[])), [false, true, true]);
        assert_eq!(selected(expression("Unheard", &[])), [false; 3]);
        assert_eq!(
            selected(json!({"matchLabels": {"team": "shop"}, "matchExpressions": [{"key": "stage", "operator": "DoesNotExist"}]})),
            [false, true, false]
        );
        assert!(tenancy(json!([{"namespaceSelector": {}}])).allowance("unknown", G).is_err(), "unknown labels match nothing");
    }

    #[test]
    fn first_matching_tenant_applies() {
        let tenancy = tenancy(json!([
            {"namespaceSelector": {"matchLabels": {"stage": "prod"}}, "names": ["shop", "shop-*"], "tags": ["tag:shop"], "maxPorts": 5},
            {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "names": [], "tags": ["*"], "sharedNames": ["eu-*"], "funnel": true, "maxNames": 0},
        ]));
        let shop = tenancy.allowance("shop", G).expect("selected");
        let allowed =
            |label: &str, tags: &[&str]| shop.allows("shop", G, label, &tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>());
        assert_eq!((allowed("shop", &["tag:shop"]), allowed("shop-eu", &[])), (Ok(()), Ok(())));
        let denied = "Namespace shop may not use the name payroll in ProxyGroup g: an administrator can allow it in spec.tailyard.tenants.";
        assert_eq!(allowed("payroll", &[]), Err(denied.to_owned()));
        assert!(allowed("shop", &["tag:shop", "tag:hr"]).is_err_and(|why| why.contains("the tag tag:hr")));
        assert_eq!((shop.max_ports, shop.max_names, shop.max_certificates), (5, 100, 50));
        assert!(!shop.shares("shop"));
        let test = tenancy.allowance("shop-test", G).expect("selected");
        assert!(test.allows("shop-test", G, "shop", &[]).is_err(), "an empty list of names allows none");
        assert_eq!((test.max_names, test.shares("eu-1"), test.shares("eu")), (0, true, false));
        assert!(tenancy.allowance("bare", G).is_err());
        let funnel = |quota: &TenantQuota, requested| quota.allows_funnel("shop", TenancyScope::Standalone, requested);
        let denied = "Namespace shop may not use Funnel without a ProxyGroup: an administrator can allow it in standalone.tenants of the \
                      chart (--standalone-tenants).";
        assert_eq!((funnel(shop, false), funnel(shop, true), funnel(test, true)), (Ok(()), Err(denied.to_owned()), Ok(())));
    }

    #[test]
    fn group_without_tenants_uses_the_default_tenancy() {
        let group = |default| Tenancy::of(&[], default, &BTreeMap::new());
        let (bounded, open) = (group(DefaultTenancy::Bounded), group(DefaultTenancy::Open));
        let [bounded, open] = [&bounded, &open].map(|tenancy| tenancy.allowance("any", G).expect("everybody"));
        let tag = ["tag:hr".to_owned()];
        assert!(bounded.allows("any", G, "payroll", &[]).is_ok());
        let denied = "Namespace any may not give an object the tag tag:hr in ProxyGroup g: an administrator can allow it in permittedTags of \
                      the chart (--permitted-tags).";
        assert_eq!(bounded.allows("any", G, "payroll", &tag), Err(denied.to_owned()));
        assert!(bounded.limit_field().contains("all other namespaces"), "a single tenant would exclude them");
        assert!(open.allows("any", G, "payroll", &tag).is_ok());
        assert_eq!(
            [bounded, open].map(|one| (one.max_ports, one.max_names, one.max_certificates, one.shares("a"))),
            [(5_000, 100, 50, false), (usize::MAX, usize::MAX, usize::MAX, true)]
        );
    }
}
