//! Requests to the API server, from its audit log.

use std::fs;

use serde_json::Value;

use super::{Cluster, RECONCILER};
use crate::audit_policy;

impl Cluster {
    /// The writes that the reconciler made, its Lease apart: verb, resource and name.
    pub fn writes(&self) -> Vec<String> {
        let writes = |request: &String| !["get", "list"].iter().any(|verb| request.starts_with(verb));
        self.requests().into_iter().filter(writes).collect()
    }

    /// The requests that the reconciler made, its Lease and watches apart: verb, resource and name.
    pub fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        let own = audit_policy::requests(&log)
            .filter(|event| event["user"]["username"] == RECONCILER && event["objectRef"]["resource"] != "leases");
        let own = own.filter(|event| matches!(event["verb"].as_str(), Some("get" | "list" | "create" | "update" | "patch" | "delete")));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let describe = |event: &Value| {
            let object = &event["objectRef"];
            let resource = format!("{} {}", text(&object["resource"]), text(&object["subresource"]));
            format!("{} {} {} {}", text(&event["verb"]), resource.trim(), text(&object["name"]), event["responseStatus"]["code"])
        };
        own.map(|event| describe(&event)).collect()
    }

    /// How often the Pod did this to such an object and succeeded, according to the API server's audit log.
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let log = fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        let done =
            |event: &Value| event["verb"] == verb && event["objectRef"]["resource"] == resource && event["responseStatus"]["code"] == 200;
        audit_policy::requests(&log).filter(done).count()
    }
}
