//! Groups and Services deleted in either order.

use crate::stage::{Stage, whole};

pub(crate) fn a_group_goes_before_its_service(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.apply(&[whole::group("other"), whole::service("first", "other", "spare.tail.lab")]);
    cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/first"]);
    cluster.kubectl(&["delete", "proxygroup/other", "--timeout=120s"]);
    cluster
        .wait(&["--for=jsonpath={.status.conditions[?(@.type==\"TailscaleEgressSvcValid\")].reason}=ProxyGroupNotReady", "service/first"]);
    whole::wait_gone(cluster, "other");
    cluster.kubectl(&["delete", "service/first", "--timeout=120s"]);
    assert_eq!(whole::children(cluster, "first"), "", "nothing of the Service is left");
    stage.answered_by("db");
}

pub(crate) fn a_service_goes_before_its_group(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.apply(&[whole::group("other"), whole::service("second", "other", "spare.tail.lab")]);
    cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/second"]);
    cluster.kubectl(&["delete", "service/second", "--timeout=120s"]);
    assert_eq!(whole::children(cluster, "second"), "", "nothing of the Service is left");
    cluster.kubectl(&["delete", "proxygroup/other", "--timeout=120s"]);
    whole::wait_gone(cluster, "other");
    stage.answered_by("db");
}
