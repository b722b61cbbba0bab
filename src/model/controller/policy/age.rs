//! Age of an object, which orders requests for one thing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Creation time in seconds, unknown last, then the UID: the older of two objects is the lesser. Users choose neither.
pub type Age<'a> = (i64, &'a str);

pub fn age(metadata: &ObjectMeta) -> Age<'_> {
    let created = metadata.creation_timestamp.as_ref().map_or(i64::MAX, |created| created.0.as_second());
    (created, metadata.uid.as_deref().unwrap_or_default())
}
