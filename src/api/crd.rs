//! The definitions of our kinds as an API server takes them: `tailyard crd` prints them, config/crd holds them.
//!
//! They are made from the types. What the derived schema says otherwise than the Tailscale operator's definitions is set
//! right here; docs/compatibility.md tells what is left. Never installs them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;

use super::proxyclass::ProxyClass;
use super::proxygroup::ProxyGroup;
use super::tailnet::Tailnet;

/// All definitions, in the order of their names.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut tailnet = Tailnet::crd();
    for root in schemas(&mut tailnet) {
        // Theirs asks for it, and every object has it.
        root.required.get_or_insert_default().insert(0, "metadata".to_owned());
    }
    [ProxyClass::crd(), ProxyGroup::crd(), tailnet].map(finished).into()
}

fn finished(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    definition.spec.names.list_kind = Some(format!("{}List", definition.spec.names.kind));
    for root in schemas(&mut definition) {
        strict(root);
        let properties = root.properties.get_or_insert_default();
        for (name, kind) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
            properties.insert(name.to_owned(), of_type(kind));
        }
    }
    definition
}

fn schemas(definition: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// A field that is not set is left out: null is no value of it. A title would say the name of a Rust type, and a text has
/// no lines of its own.
fn strict(schema: &mut JSONSchemaProps) {
    (schema.nullable, schema.title) = (None, None);
    schema.description = schema.description.take().map(|text| text.replace('\n', " "));
    if schema.x_kubernetes_int_or_string == Some(true) {
        schema.any_of = Some(vec![of_type("integer"), of_type("string")]);
    }
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(strict);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        strict(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        strict(values);
    }
}

fn of_type(name: &str) -> JSONSchemaProps {
    JSONSchemaProps { type_: Some(name.to_owned()), ..JSONSchemaProps::default() }
}
