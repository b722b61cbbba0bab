//! Users and groups that clients of a `ProxyGroup` may be.
//!
//! Invariant: the list of a `ProxyGroup` limits that of the reconciler, and adds no name to it. So who may write `ProxyGroup`s decides about
//! no right in the cluster that the reconciler's administrators have not permitted.

use crate::api::proxygroup::Impersonation;

use super::subject::is_system;

/// Entry that permits every name but those of Kubernetes itself.
pub const EVERY_NAME: &str = "*";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermittedImpersonation {
    pub names: Impersonation,
    /// Names of the `ProxyGroup` that the reconciler does not permit.
    pub refused: Vec<String>,
}

impl PermittedImpersonation {
    /// Names that a `ProxyGroup` requests, all by default, and the reconciler permits.
    pub fn new(requested: Option<&Impersonation>, permitted: &Impersonation) -> Self {
        let Some(requested) = requested else { return Self { names: permitted.clone(), refused: Vec::new() } };
        let mut refused = Vec::new();
        let users = limited(&requested.users, &permitted.users, &mut refused);
        let groups = limited(&requested.groups, &permitted.groups, &mut refused);
        Self { names: Impersonation { users, groups }, refused }
    }

    /// Message about the refused names, with an action.
    pub fn fault(&self) -> Option<String> {
        let (first, more) = (self.refused.first()?, self.refused.len() - 1);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Some(format!(
            "spec.tailyard.impersonation: the reconciler does not permit {first:?}{more}: add the names to \
             apiServerProxyConfig.impersonation of the chart (--impersonate-users, --impersonate-groups), or remove them."
        ))
    }
}

/// The permitted ones of these names.
fn limited(requested: &[String], permitted: &[String], refused: &mut Vec<String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let permits = |name: &str| permitted.iter().any(|permitted| permitted == name);
    for name in requested {
        if permits(name) || (permits(EVERY_NAME) && !is_system(name)) {
            names.push(name.clone());
        } else if name == EVERY_NAME {
            names.extend(permitted.iter().filter(|name| !is_system(name)).cloned());
        } else {
            refused.push(name.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn list_of_a_group_limits_that_of_the_reconciler() {
        type Names = &'static [&'static str];
        let cases: [(Names, Names, Names, Names); 11] = [
            (&["a"], &["*"], &["a"], &[]),
            (&["*"], &["*"], &["*"], &[]),
            (&["*", "system:masters"], &["*"], &["*"], &["system:masters"]),
            (&["system:masters", "dev"], &["*", "system:masters"], &["system:masters", "dev"], &[]),
            (&["system:masters"], &["*", "system:nodes"], &[], &["system:masters"]),
            (&["kubeadm:cluster-admins"], &["*"], &[], &["kubeadm:cluster-admins"]),
            (&["*"], &["dev", "ops", "system:masters"], &["dev", "ops"], &[]),
            (&["dev", "qa"], &["dev", "ops"], &["dev"], &["qa"]),
            (&["a"], &[], &[], &["a"]),
            (&["*"], &[], &[], &[]),
            (&[], &["*"], &[], &[]),
        ];
        for (requested, permitted, names, refused) in cases {
            let mut found = Vec::new();
            assert_eq!(limited(&list(requested), &list(permitted), &mut found), list(names), "{requested:?} {permitted:?}");
            assert_eq!(found, list(refused), "{requested:?} {permitted:?}");
        }
        let all = Impersonation { users: list(&["*"]), groups: list(&["*", "system:masters"]) };
        assert_eq!(PermittedImpersonation::new(None, &all), PermittedImpersonation { names: all, refused: Vec::new() });
    }

    proptest! {
        /// Decides as RBAC and the replicas do.
        #[test]
        fn no_name_is_permitted_by_a_group_that_the_reconciler_does_not_permit(
            requested in prop::collection::vec("\\*|system:a|system:b|a|b|c", 0..6),
            permitted in prop::collection::vec("\\*|system:a|system:b|a|b|c", 0..6),
        ) {
            let may = |names: &[String], name: &str| {
                names.iter().any(|listed| listed == name) || (!is_system(name) && names.iter().any(|listed| listed == EVERY_NAME))
            };
            let mut refused = Vec::new();
            let names = limited(&requested, &permitted, &mut refused);
            for name in ["system:a", "system:b", "a", "b", "c", "other"] {
                prop_assert_eq!(may(&names, name), may(&requested, name) && may(&permitted, name), "{}", name);
                prop_assert_eq!(refused.iter().any(|of| of == name), requested.iter().any(|of| of == name) && !may(&permitted, name));
            }
        }
    }
}
