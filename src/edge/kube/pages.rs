//! Lists in pages of bounded size: a page has at most [`PAGE_BYTES`] of text, or one object. The number of objects follows from the bytes of
//! the last page; a page with more text is requested again with fewer. A page is in memory as text: its objects are decoded one at a time,
//! as each may be many times as large then.
//!
//! Tenants write objects of up to 9 MiB as JSON: 1.5 MiB in etcd, of characters that JSON escapes.

use futures_util::AsyncReadExt as _;
use kube::api::ListParams;
use kube::core::{ObjectList, Request};
use kube::{Api, Client, Error, Resource};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{ApiCall, CallFault, KubeError, within};

/// Pages of a process in memory at once.
pub(super) const MAX_PAGES: usize = 2;
/// Text of a page with more than one object.
const PAGE_BYTES: u64 = 16 << 20;
/// Expected text of the next page: less than the maximum, as objects differ.
const GOAL: u64 = PAGE_BYTES / 4;
/// Maximum objects in a page.
const MAX_OBJECTS: u32 = 500;
/// Objects in the first page of a kind that tenants write: the API server also has the page in memory.
const FIRST_OF_USERS: u32 = 50;
/// Objects in the first page of Secrets or `ConfigMaps`.
const FIRST_OF_LARGE: u32 = 8;

/// Number of objects in the next page of a list.
#[derive(Debug, Clone, Copy)]
struct PageSize {
    first: u32,
    objects: u32,
}

impl PageSize {
    /// The first page of a list of this kind.
    fn first(kind: &str) -> Self {
        let first = match kind {
            "Secret" | "ConfigMap" => FIRST_OF_LARGE,
            "Service" | "Ingress" | "EndpointSlice" | "RoleBinding" | "Event" => FIRST_OF_USERS,
            _ => MAX_OBJECTS,
        };
        Self { first, objects: first }
    }

    /// Maximum text; `None` for a single object.
    fn max_bytes(self) -> Option<u64> {
        (self.objects > 1).then_some(PAGE_BYTES)
    }

    /// The page after one of this size with so many bytes; `None` if that was too large, and is requested again.
    fn next(self, bytes: Option<u64>) -> Self {
        let objects = match bytes {
            Some(bytes) => u32::try_from(u64::from(self.objects) * GOAL / bytes.max(1)).unwrap_or(u32::MAX),
            None if self.objects > self.first => self.first,
            None => self.objects / 2,
        };
        Self { objects: objects.clamp(1, MAX_OBJECTS), ..self }
    }
}

/// The pages of one list.
pub(super) struct Pages<'a, K> {
    client: &'a Client,
    api: &'a Api<K>,
    call: &'a ApiCall,
    parameters: ListParams,
    size: PageSize,
    is_complete: bool,
}

impl<'a, K: Resource + DeserializeOwned> Pages<'a, K> {
    pub(super) fn new(client: &'a Client, api: &'a Api<K>, call: &'a ApiCall, parameters: ListParams) -> Self {
        Self { client, api, call, parameters, size: PageSize::first(call.kind), is_complete: false }
    }

    /// Whether no page follows.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The next page, to be [decoded](Self::decode).
    pub(super) async fn next(&mut self) -> Result<ObjectList<Box<RawValue>>, KubeError> {
        loop {
            let read = within(|| self.call.clone(), self.page()).await?;
            self.size = self.size.next(read.as_ref().map(|(_, bytes)| *bytes));
            let Some((list, _)) = read else { continue };
            self.parameters.continue_token = list.metadata.continue_.clone().filter(|token| !token.is_empty());
            self.is_complete = self.parameters.continue_token.is_none();
            return Ok(list);
        }
    }

    pub(super) fn decode(&self, object: &RawValue) -> Result<K, KubeError> {
        let malformed = |error| KubeError::Call { call: self.call.clone(), fault: CallFault::of(Error::SerdeError(error)) };
        serde_json::from_str(object.get()).map_err(malformed)
    }

    /// Requests the next page; `None` if its text is too long.
    async fn page(&self) -> kube::Result<Option<(ObjectList<Box<RawValue>>, u64)>> {
        let (request, parameters) = (Request::new(self.api.resource_url()), self.parameters.clone().limit(self.size.objects));
        let request = if K::metadata_api() { request.list_metadata(&parameters) } else { request.list(&parameters) };
        let most = self.size.max_bytes().unwrap_or(u64::MAX - 1);
        let mut text = Vec::new();
        let body = self.client.request_stream(request.map_err(Error::BuildRequest)?).await?;
        let bytes = body.take(most + 1).read_to_end(&mut text).await.map_err(Error::ReadEvents)? as u64;
        let list = (bytes <= most).then(|| serde_json::from_slice(&text)).transpose().map_err(Error::SerdeError)?;
        Ok(list.map(|list| (list, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{SocketAddr, TcpListener};

    use futures_util::StreamExt as _;
    use futures_util::stream::BoxStream;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use k8s_openapi::api::networking::v1::Ingress;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{MAX_OBJECTS, PAGE_BYTES, PageSize};
    use crate::edge::kube::{Cluster, Follow, Resource, WatchChange, WatchedItem};
    use crate::model::front_end::endpoints::ServiceSlice;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Lists objects of these sizes; returns the requests, and the most bytes of them that were in memory at once.
    fn simulate(kind: &str, sizes: &[u64]) -> (usize, u64) {
        let (mut page, mut requests, mut most, mut rest) = (PageSize::first(kind), 0, 0, sizes);
        while !rest.is_empty() {
            let objects = rest.len().min(page.objects as usize);
            let bytes: u64 = rest[..objects].iter().sum();
            let is_read = page.max_bytes().is_none_or(|max| bytes <= max);
            (requests, most) = (requests + 1, most.max(page.max_bytes().map_or(bytes, |max| bytes.min(max + 1))));
            rest = if is_read { &rest[objects..] } else { rest };
            page = page.next(is_read.then_some(bytes));
        }
        (requests, most)
    }

    #[test]
    fn next_page_has_more_objects_if_the_last_one_was_small_and_fewer_if_it_was_large() {
        let table = [
            ("Service", 50, Some(100 * KIB), 500),
            ("Service", 50, Some(MIB), 200),
            ("Service", 500, Some(4 * MIB), 500),
            ("Service", 500, Some(8 * MIB), 250),
            ("Service", 50, Some(16 * MIB), 12),
            ("Service", 500, None, 50),
            ("Service", 50, None, 25),
            ("Service", 1, Some(9 * MIB), 1),
            ("Service", 50, Some(0), 500),
            ("Secret", 8, Some(32 * KIB), 500),
            ("Secret", 8, Some(8 * MIB), 4),
            ("Secret", 16, None, 8),
            ("Secret", 1, None, 1),
            ("Pod", 500, Some(100 * KIB), MAX_OBJECTS),
            ("Pod", 500, None, 250),
        ];
        for (kind, objects, bytes, next) in table {
            let page = PageSize { objects, ..PageSize::first(kind) };
            assert_eq!(page.next(bytes).objects, next, "{kind}: {objects} in {bytes:?}");
        }
    }

    /// With 50 objects in each page there were 200 requests for Services, and with eight 1,250 for Secrets.
    #[test]
    fn ten_thousand_small_objects_are_listed_by_21_requests() {
        let sizes = vec![3 * KIB; 10_000];
        for kind in ["Service", "Ingress", "EndpointSlice", "RoleBinding", "Event", "Secret", "ConfigMap"] {
            assert_eq!(simulate(kind, &sizes).0, 21, "{kind}");
        }
        assert_eq!(simulate("Pod", &sizes).0, 20);
    }

    proptest! {
        /// A namespace of small objects may come before one with large ones.
        #[test]
        fn list_of_objects_of_any_size_is_bounded(
            runs in proptest::collection::vec((prop_oneof![Just(2 * KIB), 0..64 * KIB, 0..9 * MIB, Just(9 * MIB)], 1_usize..1_000), 1..12),
            kind in proptest::sample::select(vec!["Service", "Secret", "Pod"]),
        ) {
            let sizes: Vec<_> = runs.into_iter().flat_map(|(size, count)| std::iter::repeat_n(size, count)).collect();
            let (requests, most) = simulate(kind, &sizes);
            let largest = sizes.iter().max().copied().unwrap_or_default();
            prop_assert!(most <= largest.max(PAGE_BYTES + 1), "{most} bytes");
            prop_assert!(requests <= 2 * sizes.len() + 10, "{requests} requests");
        }
    }

    /// A list of equal objects, from an API server in another thread, whose memory is not counted.
    fn serve(object: &Value, count: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // As the API server encodes it.
        let (address, object) = (listener.local_addr().expect("an address"), object.to_string().replace('<', "\\u003c"));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.expect("a connection");
                let mut lines = BufReader::new(connection.try_clone().expect("a copy")).lines();
                let head = lines.next().and_then(Result::ok).unwrap_or_default();
                while lines.next().and_then(Result::ok).is_some_and(|line| !line.is_empty()) {}
                let number = |name: &str| {
                    let text = head.split_once(name).map_or("", |(_, rest)| rest);
                    text.split(|end: char| !end.is_ascii_digit()).next().and_then(|text| text.parse().ok()).unwrap_or(0_usize)
                };
                let (begin, limit) = (number("continue="), number("limit="));
                let end = count.min(begin + limit);
                let more = if end < count { end.to_string() } else { String::new() };
                let list = r#"{"metadata":{"resourceVersion":"1","continue":""#;
                // The client may close the connection.
                let mut write = |text: &str| connection.write_all(text.as_bytes()).is_ok();
                let mut is_open = write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
                    && write(&format!("{list}{more}\"}},\"items\":["));
                for item in begin..end {
                    is_open = is_open && write(if item > begin { "," } else { "" }) && write(&object);
                }
                let _ = is_open && write("]}");
            }
        });
        address
    }

    /// Objects of a complete list, dropped one after the other, and the most bytes that it takes.
    fn list(object: &Value, count: usize, reader: Reader) -> (usize, u64) {
        let address = serve(object, count);
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("kubeconfig");
        let file = json!({"apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": format!("http://{address}")}}], "users": [{"name": "t", "user": {"token": "t"}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t", "namespace": "ts"}}]});
        std::fs::write(&path, file.to_string()).expect("written");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut listed = 0;
        let size = allocation_counter::measure(|| {
            runtime.block_on(async {
                let mut items = reader(&Cluster::kubeconfig(&path).await.expect("a client"));
                while let Some(is_item) = items.next().await.expect("a list") {
                    listed += usize::from(is_item);
                }
            });
        });
        (listed, size.bytes_max)
    }

    /// Whether each change is a listed object; `None` when the list is complete.
    type Reader = fn(&Cluster) -> BoxStream<'static, Option<bool>>;

    fn items<T: Send + 'static>(changes: BoxStream<'static, WatchChange<T>>) -> BoxStream<'static, Option<bool>> {
        let item = |change| match change {
            WatchChange::Complete => None,
            WatchChange::Lost(error) => panic!("{error}"),
            change => Some(matches!(change, WatchChange::Listed(_))),
        };
        changes.map(item).boxed()
    }

    fn all(resource: Resource) -> Follow {
        Follow { resource, namespace: None, labels: None, fields: None }
    }

    fn replica(cluster: &Cluster) -> BoxStream<'static, Option<bool>> {
        items(
            cluster.follow_as(&all(Resource::ENDPOINT_SLICE), |item: WatchedItem<EndpointSlice>| {
                item.decoded().ok().and_then(ServiceSlice::read)
            }),
        )
    }

    fn reconciler(cluster: &Cluster) -> BoxStream<'static, Option<bool>> {
        items(cluster.follow_as(&all(Resource::ENDPOINT_SLICE), WatchedItem::<EndpointSlice>::decoded))
    }

    fn json(cluster: &Cluster) -> BoxStream<'static, Option<bool>> {
        items(cluster.follow_json(&all(Resource::ENDPOINT_SLICE), WatchedItem::into_value))
    }

    /// As `tailyard status`.
    fn ingress_json(cluster: &Cluster) -> BoxStream<'static, Option<bool>> {
        items(cluster.follow_json(&all(Resource::INGRESS), WatchedItem::into_value))
    }

    fn ingress(cluster: &Cluster) -> BoxStream<'static, Option<bool>> {
        items(cluster.follow_as(&all(Resource::INGRESS), WatchedItem::<Ingress>::decoded))
    }

    /// Objects of the largest size that the API server stores.
    #[test]
    fn list_of_the_widest_objects_takes_less_than_200_megabytes() {
        let slice = |ports: Vec<Value>, endpoints: Vec<Value>| {
            let metadata =
                json!({"name": "web-1", "namespace": "t", "resourceVersion": "1", "labels": {"kubernetes.io/service-name": "web"}});
            json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints})
        };
        let port = |number: usize| json!({"name": format!("{number:03x}"), "port": number});
        let texts = |length: usize, text: &str| {
            let (zone, node) = (text.repeat(length.min(63)), text.repeat(length.min(253)));
            json!({"addresses": ["10.0.0.1"], "zone": zone, "nodeName": node, "hints": {"forZones": vec![json!({"name": zone}); 8]}})
        };
        let long = slice(vec![port(80)], vec![json!({"addresses": ["10.0.0.1"], "zone": "<".repeat(3 << 19)})]);
        let ports = slice((1..20_000).map(port).collect(), vec![texts(1, "a")]);
        let endpoints = slice((1..1_000).map(port).collect(), vec![texts(1, "a"); 1_000]);
        let valid = slice((1..1_000).map(port).collect(), vec![texts(253, "a"); 1_000]);
        let tls = json!({"metadata": {"name": "web", "namespace": "t"}, "spec": {"tls": vec![json!({}); 700_000]}});
        let small_tls = json!({"metadata": {"name": "web", "namespace": "t"}, "spec": {"tls": vec![json!({}); 5_000]}});
        let rows: [(&str, &Value, usize, &[Reader]); 6] = [
            ("long text", &long, 5, &[replica, reconciler, json]),
            ("ports", &ports, 50, &[replica, reconciler, json]),
            ("endpoints", &endpoints, 50, &[replica, reconciler, json]),
            ("texts of valid length", &valid, 50, &[replica, reconciler, json]),
            ("tls", &tls, 10, &[ingress, ingress_json]),
            ("less tls", &small_tls, 50, &[ingress, ingress_json]),
        ];
        let mut sizes = Vec::new();
        for (label, object, count, readers) in rows {
            for reader in readers {
                let (listed, bytes) = list(object, count, *reader);
                assert_eq!(listed, count, "{label}");
                sizes.push((label, bytes / 1_000_000));
            }
        }
        println!("MB: {sizes:?}");
        assert!(sizes.iter().all(|(_, megabytes)| *megabytes < 200), "MB: {sizes:?}");
    }
}
