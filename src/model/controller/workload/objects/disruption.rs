//! The `PodDisruptionBudget` of a group: node drains evict one replica at a time.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, Manifest};

pub fn disruption_budget(shape: &RenderContext<'_>) -> Manifest {
    let selector = LabelSelector { match_labels: Some(shape.owner.labels()), ..LabelSelector::default() };
    let budget = PodDisruptionBudget {
        metadata: shape.owner.metadata(shape.owner.name.clone(), None),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(selector),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    };
    Manifest::of(Kind::PodDisruptionBudget, &budget)
}
