//! Site that moves from our image to the Tailscale operator's proxy and back, under our reconciler.

use std::time::Instant;

use crate::ingress::stage::{ANSWER, GROUP, Stage};
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::images::{self, STOCK, TAILYARD};
use kit::cluster::{DEADLINE, site};
use kit::servers::servers;
use kit::wait::eventually;

/// Serves the site `web` with the other image, orders a certificate for another site `api` with that one, and goes back. Either image
/// serves the certificates of the other, and the change orders none.
pub(crate) fn a_certificate_outlives_a_change_of_the_image(stage: &Stage) {
    assert_eq!(stage.pebble.issued(), 1, "by our image");
    stage.cluster.load(&images::stock(&servers(&["containerboot"])));
    serve_by(stage, STOCK);
    stage.user.wait_for_answer("https", "web", ANSWER);
    assert_eq!(stage.pebble.issued(), 1, "the other image serves what ours ordered");

    stage.cluster.apply(&site::backends("api", ANSWER));
    stage.cluster.apply(&[site::ingress("api", GROUP)]);
    stage.user.wait_for_answer("https", "api", ANSWER);
    assert_eq!(stage.pebble.issued(), 2, "by the other image\n{}", stage.logs());
    let ordered = certificates(stage);

    serve_by(stage, TAILYARD);
    for site in ["api", "web"] {
        stage.user.wait_for_answer("https", site, ANSWER);
    }
    assert_eq!((stage.pebble.issued(), certificates(stage)), (2, ordered), "our image serves what the other ordered");
}

/// Switches the group to this image and waits until no replica of another image serves. The stock image's slow exit is not under test, but
/// ours must exit gracefully: a tailscaled killed with shields up keeps that state under the other image.
fn serve_by(stage: &Stage, image: &str) {
    let begin = Instant::now();
    chart::helm(&stage.cluster, "upgrade", &[&format!("proxyImage={image}")], &["--reuse-values"]);
    eventually("another image in the template", DEADLINE, || (images_of(stage, "statefulset") == image).then_some(()));
    if image == TAILYARD {
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        stage.cluster.kubectl(&["delete", "pods", "-n", NAMESPACE, "-l", &selector, "--now"]);
    }
    stage.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    eventually("no replica of another image", DEADLINE, || {
        images_of(stage, "pods").split_whitespace().all(|one| one == image).then_some(())
    });
    println!("all replicas of {image}: {:?}", begin.elapsed());
}

/// Proxy images in the group's template, or in its Pods.
fn images_of(stage: &Stage, kind: &str) -> String {
    let spec = if kind == "pods" { ".items[*].spec" } else { ".items[*].spec.template.spec" };
    let path = format!("jsonpath={{{spec}.containers[?(@.name==\"tailscale\")].image}}");
    let selector = format!("tailscale.com/parent-resource={GROUP}");
    stage.cluster.kubectl(&["get", kind, "-n", NAMESPACE, "-l", &selector, "-o", &path])
}

/// Stored certificates of the sites.
fn certificates(stage: &Stage) -> Vec<String> {
    let stored = |site: &str| {
        let name = stage.cluster.tailnet.name_of(site);
        let found = stage.cluster.kubectl(&["get", "secret", "-n", NAMESPACE, &name, "-o", "jsonpath={.data.tls\\.crt}"]);
        assert!(!found.is_empty(), "{name} has no certificate");
        found
    };
    ["web", "api"].map(stored).into()
}
