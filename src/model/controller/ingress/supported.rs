//! Features that the proxy image or control plane does not support.

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::service_state::lacks_services;
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::pass::Pass;

/// Checks a request against image and control plane. The error names an action.
pub(crate) fn fits(work: &Pass<'_>, shape: &RenderContext<'_>, spec: &PublishSpec) -> Result<(), Rejection> {
    let PublishTarget::Whole(whole) = &spec.target else { return Ok(()) };
    let announced = !whole.proxy_protocol.is_empty();
    let wrong = if shape.userspace() {
        "The ProxyClass of the ProxyGroup sets TS_USERSPACE, so that its replicas forward nothing: publish it by an Ingress, or by a \
         ProxyGroup of another ProxyClass."
            .to_owned()
    } else if shape.stock() && !whole.external_name.is_empty() {
        "The proxies run the Tailscale operator's image, which publishes no Service of type ExternalName: take Tailyard's image, or give \
         the Service a spec.clusterIP."
            .to_owned()
    } else if shape.stock() && announced {
        format!("The proxies run the Tailscale operator's image, which knows no {}: take Tailyard's image.", names::PROXY_PROTOCOL)
    } else if announced && lacks_services(work) {
        format!(
            "The control plane has no Tailscale Services, and what comes by a route goes through the kernel: remove {}.",
            names::PROXY_PROTOCOL
        )
    } else {
        return Ok(());
    };
    Err(Rejection::new(reason::INGRESS_SVC_INVALID, wrong))
}
