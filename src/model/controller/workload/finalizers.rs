//! Finalizers: whether an object has one of ours, and the list with or without it. Others stay, in their order. Changes of an object that
//! has a finalizer and is only validated.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::{FINALIZER, INGRESS_FINALIZER, SERVICE_FINALIZER};
use crate::api::proxygroup::ProxyGroupType;

/// Changes of a validated object: a class or a Tailnet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Validation<Status> {
    /// Complete list of finalizers, if changed.
    pub finalizers: Option<Vec<String>>,
    /// Complete status, if changed.
    pub status: Option<Status>,
    /// Warning Events: reason and message.
    pub warnings: Vec<(&'static str, String)>,
}

impl<Status: Default> Validation<Status> {
    /// The only change of an uninstall: the object has no finalizer of ours.
    pub fn released(metadata: &ObjectMeta) -> Self {
        Self { finalizers: change(metadata, FINALIZER, false), ..Self::default() }
    }
}

/// Whether an object has a finalizer in any of its forms.
pub fn has(metadata: &ObjectMeta, own: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|name| is(name, own))
}

/// Complete list that has `own` exactly if `wanted`; `None` if unchanged. Every form of it is removed.
pub fn change(metadata: &ObjectMeta, own: &str, wanted: bool) -> Option<Vec<String>> {
    let others = metadata.finalizers.iter().flatten().filter(|name| !is(name, own)).cloned();
    (has(metadata, own) != wanted).then(|| others.chain(wanted.then(|| own.to_owned())).collect())
}

/// Whether a finalizer is one of ours on objects of users.
pub fn is_own(name: &str) -> bool {
    [FINALIZER, INGRESS_FINALIZER, SERVICE_FINALIZER].iter().any(|own| is(name, own))
}

/// Whether a finalizer of ours, on an object that no config records, is ours to remove where these types of groups are served.
pub fn is_releasable(name: &str, types: &[ProxyGroupType]) -> bool {
    is(name, FINALIZER) || (releases_names(types) && is_own(name))
}

/// Whether that holds for finalizers of groups. If no group that publishes is ours, they are the Tailscale operator's, which finds by them the
/// group that it withdraws a name from.
pub fn releases_names(types: &[ProxyGroupType]) -> bool {
    types.contains(&ProxyGroupType::Ingress)
}

/// Whether a finalizer is `own`. That of a Service has two forms: since 1.104 the Tailscale operator writes the ProxyGroup's name and a dot
/// before it, and replaces the form without.
fn is(name: &str, own: &str) -> bool {
    let group = name.strip_suffix(own).filter(|_| own == SERVICE_FINALIZER).and_then(|group| group.strip_suffix('.'));
    name == own || group.is_some_and(|group| !group.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metadata(finalizers: &[&str]) -> ObjectMeta {
        ObjectMeta { finalizers: Some(finalizers.iter().map(|&name| name.to_owned()).collect()), ..ObjectMeta::default() }
    }

    #[test]
    fn finalizer_of_a_service_has_two_forms_and_no_others() {
        for own in ["tailscale.com/service-pg-finalizer", "g.tailscale.com/service-pg-finalizer", "a.b.tailscale.com/service-pg-finalizer"]
        {
            assert!(has(&metadata(&["example.com/x", own]), SERVICE_FINALIZER) && is_own(own), "{own}");
        }
        for foreign in [
            "nottailscale.com/service-pg-finalizer",
            ".tailscale.com/service-pg-finalizer",
            "g.tailscale.com/service-pg-finalizer-2",
            "g.tailscale.com/service-pg-finalizer.example.com",
            "tailscale.com.example.com/service-pg-finalizer",
            "g.tailscale.com/x-service-pg-finalizer",
            "G.Tailscale.com/service-pg-finalizer",
            "service-pg-finalizer",
            "g.tailscale.com/ingress-pg-finalizer",
            "g.tailscale.com/finalizer",
            "",
        ] {
            assert!(!has(&metadata(&[foreign]), SERVICE_FINALIZER) && !is_own(foreign), "{foreign}");
        }
        assert!(!has(&metadata(&["g.tailscale.com/ingress-pg-finalizer"]), INGRESS_FINALIZER));
        assert!(!has(&metadata(&["g.tailscale.com/finalizer"]), FINALIZER));
    }

    #[test]
    fn finalizers_of_groups_are_released_where_groups_that_publish_are_served() {
        let (egress, all) = ([ProxyGroupType::Egress], ProxyGroupType::SERVED);
        for (name, with_ingress, with_egress) in [
            ("tailscale.com/finalizer", true, true),
            ("tailscale.com/ingress-pg-finalizer", true, false),
            ("tailscale.com/service-pg-finalizer", true, false),
            ("web.tailscale.com/service-pg-finalizer", true, false),
            ("example.com/finalizer", false, false),
        ] {
            assert_eq!((is_releasable(name, &all), is_releasable(name, &egress)), (with_ingress, with_egress), "{name}");
        }
    }

    proptest! {
        #[test]
        fn release_removes_every_form_and_no_other_finalizer(
            list in prop::collection::vec((0..4_u8, "[a-z][a-z0-9]{0,9}(\\.[a-z0-9]{1,5})?"), 0..8),
        ) {
            let name = |(form, text): &(u8, String)| match form {
                0 => SERVICE_FINALIZER.to_owned(),
                1 => format!("{text}.{SERVICE_FINALIZER}"),
                2 => format!("{text}{SERVICE_FINALIZER}"),
                _ => format!("{text}.example.com/service-pg-finalizer"),
            };
            let all: Vec<String> = list.iter().map(name).collect();
            let others: Vec<String> = list.iter().filter(|(form, _)| *form > 1).map(name).collect();
            let observed = ObjectMeta { finalizers: Some(all.clone()), ..ObjectMeta::default() };
            let is_ours = others.len() < all.len();
            prop_assert_eq!(has(&observed, SERVICE_FINALIZER), is_ours);
            prop_assert_eq!(change(&observed, SERVICE_FINALIZER, false), is_ours.then(|| others.clone()));
            let added = [others, vec![SERVICE_FINALIZER.to_owned()]].concat();
            prop_assert_eq!(change(&observed, SERVICE_FINALIZER, true), (!is_ours).then_some(added));
        }
    }
}
