//! CRDs of our kinds: printed by `tailyard crd`, stored in config/crd.
//!
//! Generated from the types. Differences from the Tailscale operator's definitions are patched here; docs/compatibility.md lists the
//! remaining ones. Does not install them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;

use super::connector::Connector;
use super::dnsconfig::DNSConfig;
use super::proxyclass::ProxyClass;
use super::proxygroup::ProxyGroup;
use super::proxygrouppolicy::ProxyGroupPolicy;
use super::tailnet::Tailnet;

/// All definitions, sorted by name.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let kinds = [Connector::crd(), DNSConfig::crd(), ProxyClass::crd(), ProxyGroupPolicy::crd(), ProxyGroup::crd(), Tailnet::crd()];
    kinds.map(finished).into()
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

/// Removes `nullable` (unset fields are omitted), titles (names of Rust types) and line breaks in descriptions.
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
