//! Reconcile passes over a group of any size without a cluster: the cost of a decision apart from its writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use imbl::OrdMap;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tailyard::api::egress;
use tailyard::model::controller::egress::memo::Memory;
use tailyard::model::controller::key::WorkloadKey;
use tailyard::model::controller::kinds::plan_with_memo;
use tailyard::model::controller::policy::tenancy::DefaultTenancy;
use tailyard::model::controller::workload::actions::{GroupPlan, ObjectUpdate};
use tailyard::model::controller::workload::identity::DeviceId;
use tailyard::model::controller::workload::objects::Kind;
use tailyard::model::controller::workload::objects::services::egress_config;
use tailyard::model::controller::workload::observed::replica::{ObservedReplica, ReplicaState};
use tailyard::model::controller::workload::observed::{Class, DeviceInputs, Observed, PublishInputs, TailnetState};
use tailyard::model::controller::workload::settings::GroupSettings;
use tailyard::model::controller::workload::target_inputs::TargetInputs;

/// A group without pending changes, with the reconciler's memory of it.
pub struct IdleGroup {
    observed: Observed,
    memory: Memory,
}

impl IdleGroup {
    /// A group with this number of Services, all ready.
    pub fn of(size: usize) -> Result<Self> {
        let spec = json!({"type": "egress", "replicas": 1, "tailyard": {"matchPortRange": {"start": 10_000, "end": 39_999}}});
        let group = json!({"metadata": {"name": "g", "uid": "u", "finalizers": ["tailscale.com/finalizer"]}, "spec": spec});
        let observed = Observed {
            group: Some(Arc::new(serde_json::from_value(group)?)),
            // No control plane requests: an idle group has none.
            tailnet: TailnetState::Asking,
            services: (0..size).map(service).collect::<Result<_>>()?,
            ..nothing()
        };
        let mut rest = Self { observed, memory: Memory::default() };
        for _ in 0..10 {
            let pass = rest.pass();
            rest.apply_plan(pass)?;
            rest.acknowledge()?;
        }
        anyhow::ensure!(rest.pass().services.is_empty(), "the group finds no rest");
        Ok(rest)
    }

    /// One pass.
    pub fn pass(&mut self) -> GroupPlan {
        plan_with_memo(&self.observed, &mut self.memory)
    }

    /// The first pass after a leader election.
    pub fn first_pass(&self) -> GroupPlan {
        plan_with_memo(&self.observed, &mut Memory::default())
    }

    /// Changes the target of the Service with this number.
    pub fn retarget(&mut self, number: usize) -> Result<()> {
        let service = self.observed.services.get_mut(&key(number)).context("a Service")?;
        let annotations = Arc::make_mut(service).metadata.annotations.as_mut().context("annotations")?;
        annotations.insert("tailscale.com/tailnet-ip".to_owned(), format!("100.65.{}.{}", number / 250 % 250, number % 250));
        Ok(())
    }

    /// Applies the result of a pass.
    pub fn apply_plan(&mut self, pass: GroupPlan) -> Result<()> {
        self.observed.owned.extend(pass.apply.into_iter().map(|manifest| (manifest.object, Arc::new(manifest.value))));
        for ObjectUpdate { namespace, name, finalizers, external_name, conditions, .. } in pass.services {
            let service = self.observed.services.get_mut(&(namespace, name)).context("a Service")?;
            let service = Arc::make_mut(service);
            service.metadata.finalizers = finalizers.or(service.metadata.finalizers.take());
            if let (Some(spec), Some(name)) = (&mut service.spec, external_name.and_then(|update| update.name)) {
                spec.external_name = Some(name);
            }
            if let Some(conditions) = conditions {
                service.status.get_or_insert_default().conditions = Some(conditions);
            }
        }
        Ok(())
    }

    /// The replica holds the config.
    pub fn acknowledge(&mut self) -> Result<()> {
        let config = self.observed.owned.iter().find(|(object, _)| object.kind == Kind::ConfigMap).context("a config")?.1;
        let served = |service: egress::EgressService| egress::ServiceStatus {
            ports: service.ports,
            tailnet_target_ips: Some(vec!["100.64.0.9".to_owned()]),
            tailnet_target: service.tailnet_target,
        };
        let services: BTreeMap<_, _> = egress_config(config).into_iter().map(|(key, service)| (key, served(service))).collect();
        let egress =
            Some(egress::EgressStatus { pod_ipv4: "10.0.0.1".to_owned(), services: Some(services), ..egress::EgressStatus::default() });
        let status = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "g-0"}, "status": status}))?;
        let state = ReplicaState { device_id: DeviceId::parse("n"), egress, ..ReplicaState::default() };
        self.observed.replicas = [(0, ObservedReplica { pod: Some(Arc::new(pod)), state: Some(Arc::new(state)), config: None })].into();
        Ok(())
    }
}

/// Nothing of a group.
fn nothing() -> Observed {
    Observed {
        key: WorkloadKey::of_group("g"),
        workload: "g".to_owned(),
        now: Timestamp::UNIX_EPOCH,
        settings: Arc::new(GroupSettings {
            tenancy: DefaultTenancy::Open,
            ..GroupSettings::new("ts".to_owned(), "tailyard:bench".to_owned())
        }),
        assignment: Arc::default(),
        group: None,
        connector: None,
        class: Class::None,
        tailnet: TailnetState::Unavailable(String::new()),
        replicas: BTreeMap::new(),
        create_failure: None,
        owned: OrdMap::new(),
        certificates: OrdMap::new(),
        children: OrdMap::new(),
        slices: OrdMap::new(),
        services: OrdMap::new(),
        nodes: Vec::new(),
        namespaces: OrdMap::new(),
        names_before: 0,
        node_ports: [].into(),
        targets: TargetInputs { is_complete: true, is_default_class: true, ..TargetInputs::default() },
        restricted_group: None,
        takeover_fault: None,
        publish: PublishInputs::default(),
        waiting: None,
        replacements: 0,
        devices: DeviceInputs::default(),
        denied: BTreeMap::new(),
    }
}

fn key(number: usize) -> (String, String) {
    ("default".to_owned(), format!("service-{number}"))
}

fn service(number: usize) -> Result<((String, String), Arc<Service>)> {
    let object: Value = json!({"metadata": {"namespace": "default", "name": format!("service-{number}"), "annotations": {
        "tailscale.com/proxy-group": "g", "tailscale.com/tailnet-ip": format!("100.64.{}.{}", number / 250 % 250, number % 250)}},
        "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
    Ok((key(number), Arc::new(serde_json::from_value(object)?)))
}
