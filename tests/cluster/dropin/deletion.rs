//! Deletion of objects that changed hands: it ends soon, and nothing of them remains in the cluster and the tailnet.

use std::time::{Duration, Instant};

use kit::cluster::chart::NAMESPACE;
use kit::operators::Stage;
use kit::wait::until;

/// Time for objects and all that belongs to them.
const LIMIT: Duration = Duration::from_mins(1);
/// Kinds of the objects that either operator creates for one of users.
const KINDS: &str = "statefulsets,secrets,services,configmaps,serviceaccounts,roles,rolebindings,endpointslices";

/// Deletes objects, as kubectl names them; devices of these names and certificates of Tailscale Services of these names are theirs.
pub(crate) fn assert_ends(stage: &Stage, objects: &[&str], devices: &[&str], published: &[&str]) {
    let (cluster, begin) = (&stage.cluster, Instant::now());
    let timeout = format!("--timeout={}s", LIMIT.as_secs());
    cluster.kubectl(&[&["delete", &timeout][..], objects].concat());
    let gone = begin.elapsed();
    let outliving: Vec<_> = devices.iter().filter(|name| cluster.tailnet.knows(name)).collect();
    assert!(outliving.is_empty(), "{outliving:?} outlive {objects:?}");
    let vips = cluster.tailnet.api("GET", "/tailnet/-/vip-services")["vipServices"].to_string();
    let names: Vec<_> = published.iter().filter(|name| vips.contains(&format!("\"svc:{name}\""))).collect();
    assert!(names.is_empty(), "{names:?} outlive {objects:?}");
    let parents: Vec<_> = objects.iter().filter_map(|object| Some(object.split_once('/')?.1)).collect();
    let parents = parents.join(",");
    let domains: Vec<_> = published.iter().map(|name| cluster.tailnet.name_of(name)).collect();
    let mut selectors = vec![
        format!("tailscale.com/parent-resource in ({parents})"),
        format!("tailyard.io/parent-service in ({parents})"),
        // Its certificate stays for the rest of its week.
        format!("tailyard.io/parent-ingress in ({parents}),tailscale.com/secret-type!=certs"),
    ];
    if !domains.is_empty() {
        selectors.push(format!("tailscale.com/domain in ({})", domains.join(",")));
    }
    for selector in selectors {
        let remaining = || cluster.kubectl(&["get", KINDS, "-n", NAMESPACE, "-l", &selector, "-o", "name"]);
        until(&format!("nothing with {selector} remains"), LIMIT.saturating_sub(begin.elapsed()), || remaining().is_empty());
    }
    println!("{objects:?}: gone after {gone:?}, all that belongs to them after {:?}", begin.elapsed());
}
