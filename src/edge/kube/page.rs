//! Pages of a list: how many objects the next one has, by the size of the last one.
//!
//! A page is in memory as text. Tenants and Pods choose the size of their objects, so that a page may be large whatever the last one was: one
//! with more objects than the fewest is read up to [`MAX_GROWN`] only, and requested again with the fewest.

use futures_util::AsyncReadExt as _;
use kube::Api;
use kube::api::ListParams;
use kube::core::ObjectList;

use super::item::WatchedObject;

/// Maximum objects in a page.
const MAX_OBJECTS: u32 = 500;
/// Fewest objects in a page of a kind that tenants write, of which each may have 3 MiB as JSON.
const FEWEST_OF_USERS: u32 = 50;
/// Fewest objects in a page of a list of Secrets or `ConfigMaps`, of which each may have 1 MiB.
const FEWEST_LARGE: u32 = 8;
/// Maximum bytes of a page with more than the fewest objects.
const MAX_GROWN: usize = 8 << 20;
/// Expected bytes of the next page: half of the maximum, as objects differ.
const GOAL: u64 = MAX_GROWN as u64 / 2;

/// Number of objects in the next page of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageSize {
    fewest: u32,
    objects: u32,
}

impl PageSize {
    /// The first page of a list of this kind.
    pub(super) fn first(kind: &str) -> Self {
        let fewest = match kind {
            "Secret" | "ConfigMap" => FEWEST_LARGE,
            "Service" | "Ingress" | "EndpointSlice" | "RoleBinding" | "Event" => FEWEST_OF_USERS,
            _ => MAX_OBJECTS,
        };
        Self { fewest, objects: fewest }
    }

    pub(super) fn objects(self) -> u32 {
        self.objects
    }

    /// Maximum bytes; `None` if the number of objects bounds them.
    pub(super) fn max_bytes(self) -> Option<usize> {
        (self.objects > self.fewest).then_some(MAX_GROWN)
    }

    /// The page after one of this size with so many bytes; `None` if that was too large, and is requested again.
    pub(super) fn next(self, bytes: Option<usize>) -> Self {
        let expected = |bytes: usize| u64::from(self.objects) * GOAL / (bytes as u64).max(1);
        let objects = bytes.map_or(0, |bytes| u32::try_from(expected(bytes)).unwrap_or(u32::MAX));
        Self { objects: objects.clamp(self.fewest, MAX_OBJECTS), ..self }
    }
}

/// Reads a page and its number of bytes; `None` if it has more than these.
pub(super) async fn read_page<K: WatchedObject>(
    api: &Api<K>,
    parameters: &ListParams,
    max_bytes: Option<usize>,
) -> kube::Result<Option<(ObjectList<K>, usize)>> {
    let request = kube::core::Request::new(api.resource_url());
    let request = if K::metadata_api() { request.list_metadata(parameters) } else { request.list(parameters) };
    let body = api.clone().into_client().request_stream(request.map_err(kube::Error::BuildRequest)?).await?;
    let mut text = Vec::new();
    let limit = max_bytes.map_or(u64::MAX, |bytes| bytes as u64 + 1);
    std::pin::pin!(body).take(limit).read_to_end(&mut text).await.map_err(kube::Error::ReadEvents)?;
    if max_bytes.is_some_and(|max| text.len() > max) {
        return Ok(None);
    }
    let list = serde_json::from_slice(&text).map_err(kube::Error::SerdeError)?;
    Ok(Some((list, text.len())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    /// Lists objects of these sizes; returns the requests, and the most bytes of them that were in memory at once.
    fn list(kind: &str, sizes: &[usize]) -> (usize, usize) {
        let (mut page, mut requests, mut most, mut rest) = (PageSize::first(kind), 0, 0, sizes);
        while !rest.is_empty() {
            let objects = rest.len().min(page.objects() as usize);
            let bytes: usize = rest[..objects].iter().sum();
            let is_read = page.max_bytes().is_none_or(|max| bytes <= max);
            (requests, most) = (requests + 1, most.max(page.max_bytes().map_or(bytes, |max| bytes.min(max + 1))));
            rest = if is_read { &rest[objects..] } else { rest };
            page = page.next(is_read.then_some(bytes));
        }
        (requests, most)
    }

    #[test]
    fn page_of_objects_of_the_largest_size_has_less_than_200_megabytes() {
        for kind in ["Secret", "ConfigMap", "Service", "Ingress", "EndpointSlice", "RoleBinding"] {
            assert!(PageSize::first(kind).fewest * 3 < 200, "{kind}: MiB");
        }
        assert_eq!(PageSize::first("Pod").objects(), 500);
    }

    #[test]
    fn next_page_has_more_objects_if_the_last_one_was_small() {
        let table = [
            ("Service", 50, Some(100 * KIB), 500),
            ("Service", 50, Some(MIB), 200),
            ("Service", 500, Some(4 * MIB), 500),
            ("Service", 500, Some(8 * MIB), 250),
            ("Service", 200, Some(8 * MIB), 100),
            ("Service", 50, Some(150 * MIB), 50),
            ("Service", 500, None, 50),
            ("Service", 50, Some(0), 500),
            ("Secret", 8, Some(32 * KIB), 500),
            ("Secret", 8, Some(2 * MIB), 16),
            ("Secret", 8, Some(8 * MIB), 8),
            ("Secret", 16, None, 8),
            ("Pod", 500, Some(100 * MIB), 500),
        ];
        for (kind, objects, bytes, next) in table {
            let page = PageSize { objects, ..PageSize::first(kind) };
            assert_eq!(page.next(bytes).objects(), next, "{kind}: {objects} in {bytes:?}");
        }
    }

    /// With the fewest objects in each page there were 200 requests for Services, and 1,250 for Secrets.
    #[test]
    fn ten_thousand_small_objects_are_listed_by_21_requests() {
        let sizes = vec![3 * KIB; 10_000];
        for kind in ["Service", "Ingress", "EndpointSlice", "RoleBinding", "Event", "Secret", "ConfigMap"] {
            assert_eq!(list(kind, &sizes).0, 21, "{kind}");
        }
        assert_eq!(list("Pod", &sizes).0, 20);
    }

    proptest! {
        /// A namespace of small objects may come before one with large ones.
        #[test]
        fn list_of_objects_of_any_size_is_bounded(
            runs in proptest::collection::vec((prop_oneof![Just(2 * KIB), 0..64 * KIB, 0..3 * MIB, Just(3 * MIB)], 1_usize..1_000), 1..12),
            kind in proptest::sample::select(vec!["Service", "Secret"]),
        ) {
            let sizes: Vec<_> = runs.into_iter().flat_map(|(size, count)| std::iter::repeat_n(size, count)).collect();
            let (requests, most) = list(kind, &sizes);
            let fewest = PageSize::first(kind).fewest as usize;
            let largest: usize = sizes.windows(fewest.min(sizes.len())).map(|page| page.iter().sum()).max().unwrap_or_default();
            prop_assert!(most <= largest.max(MAX_GROWN + 1), "{most} bytes");
            prop_assert!(requests <= 2 * sizes.len().div_ceil(fewest), "{requests} requests");
        }
    }
}
