//! Schemas of foreign types in our definitions: parts of a Pod, label values, conditions. Equal to those of the Tailscale operator's
//! definitions, so that a cluster accepts the same objects under either.
//!
//! The schemas of Kubernetes' types lack parts that only an API server needs: merge rules of lists and maps, and numbers as quantities.
//! Descriptions are removed: they would be nine tenths of a definition, and `kubectl explain pod` has them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Atomic lists in a Pod, by field name.
const ATOMIC_LISTS: [&str; 16] = [
    "add",
    "drop",
    "matchExpressions",
    "matchFields",
    "matchLabelKeys",
    "mismatchLabelKeys",
    "nameservers",
    "namespaces",
    "nodeSelectorTerms",
    "options",
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "searches",
    "supplementalGroups",
    "sysctls",
    "values",
];
/// Atomic objects in a Pod.
const ATOMIC_MAPS: [&str; 5] =
    ["labelSelector", "namespaceSelector", "nodeSelectorTerms[]", "preference", "requiredDuringSchedulingIgnoredDuringExecution"];
/// Pattern of a quantity, as in Kubernetes' own definitions.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Schema of one of Kubernetes' own types.
pub(super) fn part<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    if let Some(schema) = schema.as_object_mut() {
        complete("", schema);
    }
    schema
}

/// Schema of a list of one of Kubernetes' own types.
pub(super) fn parts<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": part::<T>(generator)})
}

/// Completes the schema of the field with this name, or of the items of a list or map with this name and `[]`.
fn complete(name: &str, schema: &mut Map<String, Value>) {
    schema.remove("description");
    if schema.get("x-kubernetes-int-or-string").is_some() {
        schema.insert("pattern".into(), QUANTITY.into());
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("array") if ATOMIC_LISTS.contains(&name) => {
            schema.insert("x-kubernetes-list-type".into(), "atomic".into());
        }
        Some("array") if name == "claims" => {
            schema.insert("x-kubernetes-list-type".into(), "map".into());
            schema.insert("x-kubernetes-list-map-keys".into(), json!(["name"]));
        }
        Some("object") if ATOMIC_MAPS.contains(&name) => {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        _ => {}
    }
    for inside in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get_mut(inside).and_then(Value::as_object_mut) {
            complete(&format!("{name}[]"), schema);
        }
    }
    for (name, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if let Some(schema) = property.as_object_mut() {
            complete(name, schema);
        }
    }
}

/// Schema of prefixes, of which there is one at least.
pub(super) fn prefixes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "minItems": 1, "items": {"type": "string", "format": "cidr"}})
}

/// Schema of image pull Secret names.
pub(super) fn pull_secrets(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "default": ""}},
        "x-kubernetes-map-type": "atomic",
    }})
}

/// Schema of labels. Their keys are not validated: a pattern cannot express that.
pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "additionalProperties": {
        "type": "string",
        "maxLength": 63,
        "pattern": "^(([a-zA-Z0-9][-._a-zA-Z0-9]*)?[a-zA-Z0-9])?$",
    }})
}

/// Schema of an integer of any size.
pub(super) fn integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer"})
}

/// Schema of conditions, a list keyed by type.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    let kind = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "Last time at which the status changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {"description": "Human-readable cause and action.", "type": "string", "maxLength": 32768},
                "observedGeneration": {
                    "description": "The metadata.generation that the condition is based on.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "reason": {
                    "description": "Machine-readable reason.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {"description": "Status of the condition: True, False or Unknown.", "type": "string", "enum": ["True", "False", "Unknown"]},
                "type": {"description": "Type of the condition.", "type": "string", "maxLength": 316, "pattern": kind},
            },
        },
    })
}
