//! The Pod of a replica, as the detector uses it.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize as _;
use serde_json::Value;

use crate::api::failover::{UnreachableNote, UnreachableStage};
use crate::api::names;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::naming::standby_name;
use crate::model::controller::workload::objects::statefulset::pod_health_port;
use crate::model::controller::workload::objects::workload_of;
use crate::model::controller::workload::readiness::{is_lost, is_ready, unreachable_note};
use crate::model::plan::targets::TargetPolicy;

/// Condition type of a Pod that receives traffic.
pub(super) const READY: &str = "Ready";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaReadiness {
    Ready,
    NotReady,
    /// Unready because it does not answer health probes.
    Lost,
}

/// A running replica with a health server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaPod {
    pub uid: String,
    pub name: String,
    pub workload: WorkloadKey,
    pub node: String,
    /// Address of its health server.
    pub target: SocketAddr,
    pub readiness: ReplicaReadiness,
    /// Note of a reconciler that it does not answer.
    pub note: Option<UnreachableNote>,
}

impl ReplicaPod {
    /// Whether a reconciler has found it unreachable, and none has reached it since.
    pub fn is_noted_lost(&self) -> bool {
        self.note.as_ref().is_some_and(|note| note.stage == UnreachableStage::Lost)
    }

    /// Reads a Pod. `None` unless it runs on a node, is not being deleted, and has an address that may be probed: a node writes the
    /// address, so reserved ranges are refused.
    pub fn read(pod: &Pod) -> Option<Self> {
        let (spec, status, metadata) = (pod.spec.as_ref()?, pod.status.as_ref()?, &pod.metadata);
        if status.phase.as_deref() != Some("Running") || metadata.deletion_timestamp.is_some() {
            return None;
        }
        let ip: IpAddr = status.pod_ip.as_ref()?.parse().ok()?;
        if TargetPolicy::default().refuses(ip, false, "").is_some() {
            return None;
        }
        let readiness = if is_ready(pod) {
            ReplicaReadiness::Ready
        } else if is_lost(pod) {
            ReplicaReadiness::Lost
        } else {
            ReplicaReadiness::NotReady
        };
        Some(Self {
            uid: metadata.uid.clone()?,
            name: metadata.name.clone()?,
            workload: workload_of(metadata.labels.as_ref()?).filter(WorkloadKey::has_failover)?,
            node: spec.node_name.clone().filter(|node| !node.is_empty())?,
            target: SocketAddr::new(ip, pod_health_port(spec)?),
            readiness,
            note: unreachable_note(pod),
        })
    }

    /// Whether it serves, or may take over from the active Pod.
    pub(super) fn is_survivor(&self) -> bool {
        match self.readiness {
            ReplicaReadiness::Ready => true,
            ReplicaReadiness::NotReady => self.workload.is_standalone(),
            ReplicaReadiness::Lost => false,
        }
    }
}

/// How the claim of a lost active Pod passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Succession {
    /// Name of the Lease of the two Pods.
    pub lease: String,
    /// UID of the waiting Pod.
    pub successor: String,
}

impl Succession {
    /// Finds the other Pod of a standalone proxy among the Pods of its workload. The names of the two decide the name of their Lease: a proxy
    /// cannot change them, and no other workload has them.
    pub fn of(lost: &ReplicaPod, pods: &[Value]) -> Option<Self> {
        let pods = pods.iter().filter_map(|pod| ReplicaPod::read(&Pod::deserialize(pod).ok()?));
        let mut others =
            pods.filter(|pod| lost.workload.is_standalone() && pod.workload == lost.workload && pod.uid != lost.uid && pod.is_survivor());
        others.find_map(|other| {
            let pair = [(&lost.name, &other.name), (&other.name, &lost.name)];
            let (lease, _) = pair.into_iter().find(|(first, second)| {
                let workload = first.strip_suffix("-0");
                workload.is_some_and(|workload| names::replica(&standby_name(workload), 0) == **second)
            })?;
            Some(Self { lease: lease.clone(), successor: other.uid.clone() })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Option<ReplicaPod> {
        let labels = json!({"tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "g"});
        let mut pod = json!({
            "metadata": {"uid": "u", "name": "g-0", "labels": labels},
            "spec": {"nodeName": "n1", "containers": [{"name": "tailscale", "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9002}}}]},
            "status": {"phase": "Running", "podIP": "10.1.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        change(&mut pod);
        ReplicaPod::read(&serde_json::from_value(pod).expect("a Pod"))
    }

    #[test]
    fn running_pods_are_probed_at_the_port_of_their_readiness_probe() {
        let expected = ReplicaPod {
            uid: "u".into(),
            name: "g-0".into(),
            workload: "g".into(),
            node: "n1".into(),
            target: "10.1.0.7:9002".parse().expect("an address"),
            readiness: ReplicaReadiness::Ready,
            note: None,
        };
        assert_eq!(pod(|_| ()), Some(expected));
        let six = pod(|pod| pod["status"]["podIP"] = json!("fd00::7")).expect("a replica");
        assert_eq!(six.target.to_string(), "[fd00::7]:9002");
    }

    #[test]
    fn pods_that_cannot_be_lost_or_probed_are_skipped() {
        let without = |pointer: &'static str| pod(|pod| *pod.pointer_mut(pointer).expect("a field") = Value::Null);
        for pointer in ["/metadata/uid", "/metadata/labels", "/spec/nodeName", "/status/podIP", "/spec/containers/0/readinessProbe"] {
            assert_eq!(without(pointer), None, "{pointer}");
        }
        assert_eq!(pod(|pod| pod["status"]["phase"] = json!("Pending")), None);
        assert_eq!(pod(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")), None);
        assert_eq!(pod(|pod| pod["spec"]["containers"][0]["name"] = json!("other")), None);
        for port in [json!("http"), json!(0), json!(70_000)] {
            assert_eq!(pod(|pod| pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = port.clone()), None, "{port}");
        }
        for ip in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1", "localhost", ""] {
            assert_eq!(pod(|pod| pod["status"]["podIP"] = json!(ip)), None, "{ip:?}");
        }
    }

    #[test]
    fn succession_is_of_the_two_pods_of_one_proxy() {
        let second = names::replica(&standby_name("ts-web-abcde"), 0);
        let standalone = |uid: &str, name: &str, change: fn(&mut Value)| {
            let labels = [("tailscale.com/parent-resource-type", "svc"), ("tailscale.com/parent-resource", "web")];
            let mut labels: BTreeMap<_, _> = labels.into_iter().collect();
            labels.insert("tailscale.com/parent-resource-ns", "default");
            let probe = json!({"httpGet": {"path": "/readyz", "port": 9002}});
            let mut pod = json!({
                "metadata": {"uid": uid, "name": name, "labels": labels},
                "spec": {"nodeName": uid, "containers": [{"name": "tailscale", "readinessProbe": probe}]},
                "status": {"phase": "Running", "podIP": "10.1.0.7", "conditions": [{"type": "Ready", "status": "False"}]},
            });
            change(&mut pod);
            pod
        };
        let replica = |pod: &Value| ReplicaPod::read(&serde_json::from_value(pod.clone()).expect("a Pod")).expect("a replica");
        let first_pod = standalone("u1", "ts-web-abcde-0", |_| ());
        let second_pod = standalone("u2", &second, |_| ());
        let both = [first_pod.clone(), second_pod.clone()];
        let succession = |successor: &str| Some(Succession { lease: "ts-web-abcde-0".into(), successor: successor.into() });
        assert_eq!(replica(&first_pod).workload, "default/web".into());
        assert_eq!(Succession::of(&replica(&first_pod), &both), succession("u2"));
        assert_eq!(Succession::of(&replica(&second_pod), &both), succession("u1"), "the Lease has the name of the first Pod");
        assert_eq!(Succession::of(&replica(&first_pod), &both[..1]), None, "without standby");
        let refused: [fn(&mut Value); 4] = [
            |pod| pod["metadata"]["name"] = json!("ts-web-fghij-0"),
            |pod| pod["metadata"]["labels"]["tailscale.com/parent-resource-ns"] = json!("other"),
            |pod| pod["status"]["conditions"][0]["reason"] = json!("TailyardUnreachable"),
            |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        ];
        for change in refused {
            let other = standalone("u2", &second, change);
            assert_eq!(Succession::of(&replica(&first_pod), &[first_pod.clone(), other.clone()]), None, "{other}");
        }
        let mut group = replica(&first_pod);
        group.workload = "g".into();
        assert_eq!(Succession::of(&group, &both), None, "a group");
    }

    #[test]
    fn lost_replicas_differ_from_unready_ones_by_the_reason() {
        let readiness = |condition: Value| pod(|pod| pod["status"]["conditions"] = json!([condition])).expect("a replica").readiness;
        assert_eq!(readiness(json!({"type": "Ready", "status": "False"})), ReplicaReadiness::NotReady);
        assert_eq!(readiness(json!({"type": "Ready", "status": "False", "reason": "TailyardUnreachable"})), ReplicaReadiness::Lost);
        assert_eq!(readiness(json!({"type": "Ready", "status": "True", "reason": "TailyardUnreachable"})), ReplicaReadiness::Ready);
        assert_eq!(readiness(json!({"type": "ContainersReady", "status": "True"})), ReplicaReadiness::NotReady);
    }

    #[test]
    fn noted_replica_is_lost_whatever_reason_its_kubelet_gives() {
        let noted = |stage: &str, status: &str| {
            let note = json!({"stage": stage, "process": "r-1", "time": "t", "since": "s", "connected": true}).to_string();
            pod(|pod| {
                pod["metadata"]["annotations"] = json!({"tailyard.io/unreachable": note});
                pod["status"]["conditions"] = json!([{"type": "Ready", "status": status, "reason": "ContainersNotReady"}]);
            })
            .expect("a replica")
        };
        assert_eq!(noted("lost", "False").readiness, ReplicaReadiness::Lost);
        assert_eq!(noted("suspected", "False").readiness, ReplicaReadiness::NotReady);
        assert_eq!((noted("lost", "True").readiness, noted("lost", "True").is_noted_lost()), (ReplicaReadiness::Ready, true));
        let unreadable = pod(|pod| pod["metadata"]["annotations"] = json!({"tailyard.io/unreachable": "yes"})).expect("a replica");
        assert_eq!(unreadable.note, None);
    }
}
