//! Kubelets, and replicas that apply their config and report it in their state Secrets.

use k8s_openapi::api::core::v1::Secret;

use super::*;
use crate::api::{egress, ingress, state};
use crate::model::controller::kinds::tests::simulation::{joined, name_device};
use crate::model::controller::workload::identity::{DeviceLabel, DeviceName};
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::egress_config;
use crate::model::controller::workload::observed::replica::{ReplicaConfig, ReplicaState};

fn secret(object: &Value) -> Secret {
    serde_json::from_value(object.clone()).expect("a Secret")
}

impl Cluster {
    /// Creates and deletes Pods; replicas join the tailnet, apply their config and report it.
    pub(in super::super) fn live(&mut self) {
        let sets: Vec<_> = self.objects.iter().filter(|((kind, ..), _)| *kind == "StatefulSet").map(|(_, set)| set.clone()).collect();
        let mut wanted = BTreeSet::new();
        for set in &sets {
            let (name, template) = (id(set).1, &set["spec"]["template"]);
            for ordinal in 0..set["spec"]["replicas"].as_u64().unwrap_or(1) {
                let pod = format!("{name}-{ordinal}");
                if self.object("Pod", NS, &pod).is_none() {
                    let ip = format!("10.1.{}.{}", self.version >> 8 & 255, self.version & 255);
                    let status = json!({"podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]});
                    let metadata = json!({"name": pod, "namespace": NS, "labels": template["metadata"]["labels"]});
                    self.put("Pod", json!({"metadata": metadata, "spec": {"nodeName": "n", "containers": []}, "status": status}));
                }
                self.replica(&name, &pod);
                wanted.insert(pod);
            }
        }
        let gone = self.objects.keys().filter(|(kind, _, name)| *kind == "Pod" && !wanted.contains(name)).cloned();
        for id in gone.collect::<Vec<_>>() {
            self.remove(&id);
        }
    }

    /// A replica joins the tailnet with the key of its config, and reports what its config says.
    fn replica(&mut self, workload: &str, pod: &str) {
        let config = self.object("Secret", NS, &format!("{pod}-config")).map(secret);
        let (Some(config), Some(stored)) = (config, self.object("Secret", NS, pod).map(secret)) else { return };
        let (config, stored) = (ReplicaConfig::read(&config), ReplicaState::read(&stored));
        let id = device_id(pod);
        let hostname = config.document.as_ref().and_then(|document| document["Hostname"].as_str()).unwrap_or(pod).to_owned();
        if stored.device_id.is_none() || !self.devices.contains_key(&id) {
            let Some(number) = config.auth_key().and_then(|key| key.strip_prefix("tskey-")?.parse::<usize>().ok()) else { return };
            let tags = self.minted[number - 1].tags.clone();
            self.join(&id, tags);
        }
        let addresses = self.name_device(&id, &hostname);
        let DeviceLabel::Whole(name) = self.devices[&id].name.clone() else { panic!("a whole name") };
        let status = &self.object("Pod", NS, pod).expect("a Pod");
        let (ip, uid) = (status["status"]["podIP"].as_str().expect("an address"), status["metadata"]["uid"].as_str().expect("a UID"));
        let mut report = vec![
            (state::DEVICE_ID, id.to_string()),
            (state::DEVICE_FQDN, format!("{}.", name.as_str())),
            (state::DEVICE_IPS, json!(addresses).to_string()),
            (state::POD_UID, uid.to_owned()),
        ];
        if let Some(config) = self.object("ConfigMap", NS, &names::egress_config(workload)) {
            report.push((egress::KEY, json!(acknowledged(config, ip)).to_string()));
        }
        if let Some(published) = self.object("ConfigMap", NS, &names::ingress_config(workload)).map(IngressConfigMap::read) {
            let served = published.names();
            let services: Vec<_> = config.advertises().filter(|name| served.contains(*name)).collect();
            let status = ingress::IngressStatus { configs: published.mappings.clone(), pod_ipv4: ip.to_owned(), ..Default::default() };
            report.push((state::CURRENT_PROFILE, "profile-1".to_owned()));
            report.push(("profile-1", json!({"AdvertiseServices": services}).to_string()));
            report.push((ingress::KEY, json!(status).to_string()));
            let hosts = published.routes.values().flat_map(|site| &site.hosts).filter(|(_, host)| host.issue);
            for (host, _) in hosts {
                self.report(host, &[("tls.crt", "a chain".to_owned()), ("tls.key", "a key".to_owned())]);
            }
        }
        self.report(pod, &report);
    }

    /// Writes fields of a Secret, if they differ.
    fn report(&mut self, name: &str, fields: &[(&str, String)]) {
        let Some(mut object) = self.object("Secret", NS, name).cloned() else { return };
        let before = object.clone();
        for (key, text) in fields {
            object["data"][*key] = encoded(text);
        }
        if object != before {
            self.put("Secret", object);
        }
    }

    /// The objects of a standalone proxy that the Tailscale operator made, under this name, with a device.
    pub(in super::super) fn take_over(&mut self, (namespace, service): (&str, &str), workload: &str) {
        let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_SERVICE, names::PARENT: service,
            names::PARENT_NAMESPACE: namespace});
        let uid = self.object("Service", namespace, service).expect("a Service")["metadata"]["uid"].clone();
        let metadata = |name: &str| json!({"name": name, "namespace": NS, "labels": labels});
        let mut pod = labels.clone();
        pod["app"] = uid.clone();
        self.put("Service", json!({"metadata": metadata(workload), "spec": {"clusterIP": "None", "selector": {"app": uid}}}));
        let (name, hostname) = (format!("{workload}-0"), format!("{namespace}-{service}"));
        let config = json!({"Version": "alpha0", "Hostname": hostname}).to_string();
        let data = json!({"cap-107.hujson": encoded(&config), "device_id": encoded(device_id(&name).as_str()),
            "device_fqdn": encoded(&format!("{hostname}.{DOMAIN}."))});
        self.put("Secret", json!({"metadata": metadata(&name), "data": data}));
        self.put(
            "StatefulSet",
            json!({"metadata": metadata(workload), "spec": {"replicas": 1, "serviceName": workload,
            "selector": {"matchLabels": {"app": uid}}, "template": {"metadata": {"labels": pod}, "spec": {"containers": [
            {"name": "tailscale", "image": "tailscale/tailscale:v1.102.5"}]}}}}),
        );
        let tags = vec!["tag:k8s".to_owned()];
        self.join(&device_id(&name), tags);
        self.name_device(&device_id(&name), &hostname);
    }

    /// A device joins the tailnet.
    fn join(&mut self, id: &DeviceId, tags: Vec<String>) {
        self.version += 1;
        self.devices.insert(id.clone(), joined(id, self.version, tags, self.time()));
    }

    /// The control plane names a device after a new host name, and numbers a name that another device or a Tailscale Service has. Returns its
    /// addresses.
    fn name_device(&mut self, id: &DeviceId, hostname: &str) -> Vec<String> {
        let name = DeviceLabel::Whole(DeviceName::parse(&format!("{hostname}.{DOMAIN}")).expect("a name"));
        let is_taken = self.devices.iter().any(|(other, device)| other != id && device.name == name)
            || self.vips.contains_key(&format!("svc:{hostname}"));
        let device = self.devices.get_mut(id).expect("a device");
        if device.hostname != hostname {
            name_device(device, hostname, if is_taken { "-1" } else { "" }, true);
        }
        device.addresses.texts()
    }
}

/// The status of a replica that applies an egress config.
fn acknowledged(config: &Value, ip: &str) -> egress::EgressStatus {
    let served = |service: egress::EgressService| egress::ServiceStatus {
        ports: service.ports,
        tailnet_target_ips: Some(vec!["100.64.0.9".into()]),
        tailnet_target: service.tailnet_target,
    };
    let services: BTreeMap<_, _> = egress_config(config).into_iter().map(|(key, service)| (key, served(service))).collect();
    egress::EgressStatus { pod_ipv4: ip.to_owned(), services: Some(services), ..Default::default() }
}
