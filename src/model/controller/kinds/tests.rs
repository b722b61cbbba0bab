//! Reconciliation of a small cluster: results, invariants and termination.

use crate::model::controller::kinds::tests::world::{NS, World, headscale, idle, site, to};
use serde_json::json;

use super::*;
use crate::api::condition::{EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY, EGRESS_SVC_VALID};
use crate::api::names;
use crate::model::controller::egress::slices::MAX_SLICE_WRITES;
use crate::model::controller::egress::validate;
use crate::model::controller::ingress::advertise::serves;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::tests::simulation::Simulation;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::ingress_summary::{Certified, PublishState};
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{Class, ControlPlaneError, TailnetState};

mod api_server;
mod budget;
mod certificates;
mod config;
mod connector;
mod convergence;
mod cost;
mod defaults;
mod denied_names;
mod devices;
mod handover;
mod ingress_faults;
mod objects;
mod operator_device;
mod orders;
mod pod_faults;
mod publish;
mod publishing;
mod refusals;
mod replicas;
mod routes;
mod services;
pub(crate) mod simulation;
mod slices;
mod standalone;
mod standalone_certificates;
mod standalone_ingress;
mod standalone_pace;
mod standalone_standby;
mod teardown;
mod tenants;
mod uninstall;
mod world;

/// A cluster with an egress group and Services `s0`, `s1` and so on, not reconciled yet.
fn with_services(count: usize) -> World {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    for index in 0..count {
        world.service(&format!("s{index}"), to("pg"), &[80]);
    }
    world
}

/// A cluster with a group and one served Service.
fn serving() -> World {
    let mut world = with_services(0);
    world.service("db", to("pg"), &[5432]);
    world.settle();
    world
}

fn object(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef::new(kind, NS, name)
}
