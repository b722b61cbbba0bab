//! Architecture test: the dependencies of the table in src/lib.rs, one place for each third-party crate, a pure model, and rules for files.
//! Every rule is also tested with a bad sample, since a checker that cannot fail checks nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{self, Source};

/// Maximum length of a file's production part, in lines.
const LONGEST: usize = 400;
/// Maximum of the median of these lengths.
const MEDIAN: usize = 150;

/// Crates that only certain files or folders under src may use.
const DOORS: &[(&str, &[&str])] = &[
    ("anyhow", &["cli", "main"]),
    ("arc_swap", &["runtime/snapshot"]),
    ("base64", &["model/ingress/certificate"]),
    ("clap", &["cli"]),
    ("flate2", &["model/base/gzip"]),
    ("h2", &["proxy/front_end/upstream"]),
    ("async_trait", &["edge/dns_server"]),
    ("hickory_resolver", &["edge/dns"]),
    ("hickory_server", &["edge/dns_server"]),
    ("httpdate", &["edge/acme", "edge/control", "edge/kube"]),
    ("http_body_util", &["edge/acme", "edge/localapi", "load/https", "runtime/admin"]),
    (
        "hyper",
        &[
            "edge/acme",
            "edge/localapi",
            "load/https",
            "nameserver/http",
            "runtime/admin",
            "proxy/http",
            "proxy/front_end",
            "reconciler/http",
        ],
    ),
    ("hyper_util", &["edge/localapi", "load/https", "proxy/front_end", "runtime/admin"]),
    ("inotify", &["edge/files"]),
    ("instant_acme", &["edge/acme"]),
    ("jsonc_parser", &["model/base/hujson"]),
    (
        "k8s_openapi",
        &[
            "api",
            "edge/acme",
            "edge/control",
            "edge/kube",
            "model",
            "proxy/certs",
            "proxy/front_end/endpoints",
            "proxy/metrics/certs",
            "proxy/state_secret/start",
            "proxy/tailnet/recent_peers",
            "reconciler",
        ],
    ),
    ("kube", &["api", "edge/kube"]),
    ("libc", &[]),
    ("netlink_packet_core", &["edge/link", "runtime/nfnetlink"]),
    ("netlink_packet_route", &["edge/link"]),
    ("netlink_sys", &["edge/nft/notices", "runtime/nfnetlink"]),
    ("nftables", &["model/firewall/nft"]),
    ("prometheus", &["runtime/metrics"]),
    ("rcgen", &["edge/acme"]),
    ("reqwest", &["edge/acme", "edge/control", "edge/health_probe", "runtime/https"]),
    ("ring", &["edge/tls", "model/base/hash"]),
    ("rtnetlink", &["edge/link"]),
    ("schemars", &["api"]),
    ("rustix", &["edge/daemon", "runtime/resources"]),
    ("rustls", &["edge/acme", "edge/tls", "model/ingress/certificate", "runtime/https"]),
    (
        "serde_saphyr",
        &[
            "cli/crd",
            "model/diagnostics/doctor/rights",
            "model/diagnostics/migration/values",
            "model/kubeconfig/document",
            "model/kubeconfig/tree",
        ],
    ),
    ("socket2", &["edge/kernel_tcp", "edge/raw_tcp"]),
    ("tokio_rustls", &["edge/tls"]),
    ("tracing_subscriber", &["runtime/telemetry"]),
    ("x509_parser", &["model/ingress/certificate"]),
];

/// Names that a pure layer may not use: clocks, randomness, IO and logs. `api` and `model` are pure.
const IMPURE: [&str; 17] = [
    "fastrand",
    "futures_util",
    "nix",
    "rand",
    "std::env",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::SystemTime",
    "tokio",
    "tracing",
    "Instant::now",
    "SystemTime",
];

/// Dependencies that a layer may have, from the table of src/lib.rs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Layer {
    everything: bool,
    others: BTreeSet<String>,
    /// Its top modules may not depend on each other.
    apart: bool,
}

/// Reads the table of src/lib.rs.
fn layers(lib: &str) -> BTreeMap<String, Layer> {
    let rows = lib.lines().filter_map(|line| line.strip_prefix("//! | [`"));
    let row = |line: &str| {
        let (name, rest) = line.split_once("`]").expect("a layer's name");
        let may = rest.split('|').nth(2).expect("three columns");
        let others = may.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (name.to_owned(), Layer { everything: may.trim() == "everything", others, apart: may.contains("no other") })
    };
    rows.map(row).collect()
}

/// All faults of these files (path under src, text).
fn faults(layers: &BTreeMap<String, Layer>, files: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut lengths = Vec::new();
    for (path, text) in files {
        let mut fault = |what: String| faults.push(format!("{path}: {what}"));
        let source = Source::new(path, text);
        if path.ends_with("/mod.rs") {
            fault("a module is foo.rs beside foo/, not foo/mod.rs".to_owned());
        }
        if source.module.iter().any(|name| matches!(name.as_str(), "util" | "utils" | "helpers" | "common" | "misc")) {
            fault("a module is named after what it is about".to_owned());
        }
        if ["TODO", "FIXME", "XXX", "HACK"].iter().any(|word| text.contains(word)) {
            fault("unfinished work has no place in the tree".to_owned());
        }
        if source.is_test {
            continue;
        }
        if !text.starts_with("//!") {
            fault("a module begins with //!: why it exists and what it never does".to_owned());
        }
        lengths.push(source.lines);
        if source.lines > LONGEST {
            fault(format!("{} lines of production code are more than {LONGEST}", source.lines));
        }
        arrows(layers, &source).into_iter().chain(doors(&source)).chain(purity(&source)).for_each(fault);
    }
    lengths.sort_unstable();
    if lengths.get(lengths.len() / 2).is_some_and(|median| *median > MEDIAN) {
        faults.push(format!("half of the files have more than {MEDIAN} lines of production code"));
    }
    faults
}

/// Dependencies on our modules that the table does not permit.
fn arrows(layers: &BTreeMap<String, Layer>, source: &Source) -> Vec<String> {
    let Some(own) = source.module.first() else { return Vec::new() };
    let Some(layer) = layers.get(own) else {
        return if own == "main" { Vec::new() } else { vec![format!("{own} is not in the table of src/lib.rs")] };
    };
    let mut faults = Vec::new();
    for path in source.ours() {
        let (Some(to), part) = (path.first(), path.get(1)) else { continue };
        if !layers.contains_key(to) {
            continue;
        }
        if to != own && !layer.everything && !layer.others.contains(to) {
            faults.push(format!("{own} may not name {}", path.join("::")));
        }
        let next_door = to == own && layer.apart && source.module.len() > 1 && part.is_some() && part != source.module.get(1);
        if next_door {
            faults.push(format!("files of {own} may not name each other: {}", path.join("::")));
        }
    }
    faults
}

/// Third-party crates outside of their places.
fn doors(source: &Source) -> Vec<String> {
    let own = source.module.join("/");
    let inside = |door: &&str| own == **door || own.starts_with(&format!("{door}/"));
    let wrong = DOORS.iter().filter(|(name, doors)| source.names(name) && !doors.iter().any(&inside));
    wrong.map(|(name, doors)| format!("{name} comes in by {} only", doors.join(", "))).collect()
}

fn purity(source: &Source) -> Vec<String> {
    if !matches!(source.module.first().map(String::as_str), Some("api" | "model")) {
        return Vec::new();
    }
    IMPURE.iter().filter(|name| source.names(name)).map(|name| format!("a pure layer does not name {name}")).collect()
}

fn tree() -> (BTreeMap<String, Layer>, Vec<(String, String)>) {
    let files = source::tree();
    let lib = files.iter().find(|(path, _)| path == "lib.rs").map(|(_, text)| layers(text)).expect("src/lib.rs");
    (lib, files)
}

#[test]
fn tree_follows_the_layer_table() {
    let (layers, mut files) = tree();
    files.retain(|(path, _)| path != "lib.rs");
    assert!(files.len() > 60, "only {} files were found", files.len());
    let faults = faults(&layers, &files);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Folders of the model on a dependency cycle: folders that name each other, or that name such a folder.
fn cyclic_folders(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::<String, BTreeSet<String>>::new();
    for (path, text) in files {
        let source = Source::new(path, text);
        let folder = |path: &[String]| (path.first().map(String::as_str) == Some("model")).then(|| path.get(1).cloned()).flatten();
        let Some(own) = folder(&source.module).filter(|_| !source.is_test) else { continue };
        let others = source.ours().iter().filter_map(|path| folder(path)).filter(|other| *other != own).collect::<BTreeSet<_>>();
        arrows.entry(own).or_default().extend(others);
    }
    // A folder that names none of the remaining ones is on no cycle.
    loop {
        let remaining: BTreeSet<_> = arrows.keys().cloned().collect();
        let before = arrows.len();
        arrows.retain(|_, others| others.iter().any(|other| remaining.contains(other)));
        if arrows.len() == before {
            return arrows;
        }
    }
}

#[test]
fn folders_of_the_model_have_no_cycle() {
    let (_, files) = tree();
    assert_eq!(cyclic_folders(&files), BTreeMap::new());
    let sample = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let mut bad =
        vec![sample("model/a.rs", "use crate::model::b::X;"), sample("model/b/c.rs", "use crate::model::a;"), sample("model/d.rs", "")];
    assert_eq!(cyclic_folders(&bad).into_keys().collect::<Vec<_>>(), ["a", "b"]);
    bad[1].1 = "use crate::model::d;".to_owned();
    assert_eq!(cyclic_folders(&bad), BTreeMap::new());
}

/// Folder in which a module and its submodules may not name each other either: what both need is in a file of its own.
const STRICT: &str = "model/controller/";

/// Files of the tree, and the files that each names. A name that a module re-exports is of the file that defines it. Outside of [`STRICT`],
/// a module and its submodules may name each other.
fn file_arrows(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).filter(|source| !source.is_test).collect();
    let named = |source: &Source| source.module.join("/");
    let exports: BTreeMap<String, BTreeMap<String, Vec<String>>> =
        sources.iter().map(|source| (named(source), source.reexports().collect())).collect();
    let file = |path: &[String]| {
        let mut path = path.to_vec();
        // A chain of re-exports is short.
        for _ in 0..5 {
            let length = (1..=path.len()).rev().find(|length| exports.contains_key(&path[..*length].join("/")))?;
            let module = path[..length].join("/");
            match path.get(length).and_then(|name| exports[&module].get(name)).filter(|defined| **defined != path) {
                Some(defined) => path = defined.iter().chain(&path[length + 1..]).cloned().collect(),
                None => return Some(module),
            }
        }
        None
    };
    let inside = |one: &str, other: &str| one.starts_with(&format!("{other}/"));
    let counts = |own: &str, other: &str| {
        let is_family = inside(own, other) || inside(other, own);
        own != other && (!is_family || (own.starts_with(STRICT) && other.starts_with(STRICT)))
    };
    let arrows = |source: &Source| {
        let own = named(source);
        let submodule = |path: &Vec<String>| exports.contains_key(&path[..=source.module.len()].join("/"));
        let paths = source.ours().into_iter().chain(source.below().into_iter().filter(submodule));
        let others = paths.filter_map(|path| file(&path)).filter(|other| counts(&own, other)).collect();
        (own, others)
    };
    sources.iter().map(arrows).collect()
}

/// Files on a dependency cycle: files that name each other, or that name such a file.
fn cyclic_files(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let arrows = file_arrows(files);
    let mut cycles = BTreeMap::new();
    for own in arrows.keys() {
        let reached = |from: &String| {
            let (mut found, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(next) = open.pop() {
                for other in arrows.get(next).into_iter().flatten().filter(|other| !found.contains(*other)).collect::<Vec<_>>() {
                    found.insert(other.clone());
                    open.push(other);
                }
            }
            found
        };
        let back: BTreeSet<_> = reached(own).into_iter().filter(|other| other != own && reached(other).contains(own)).collect();
        if !back.is_empty() {
            cycles.insert(own.clone(), back);
        }
    }
    cycles
}

#[test]
fn files_have_no_cycle() {
    let (_, files) = tree();
    assert_eq!(cyclic_files(&files), BTreeMap::new(), "move what both files need into a third");
    let sample = |path: &str, text: &str| (path.to_owned(), format!("//! A sample.\n{text}"));
    let bad =
        [sample("model/a.rs", "use crate::model::b::X;"), sample("model/b.rs", "use super::c;"), sample("model/c.rs", "use super::a;")];
    assert_eq!(cyclic_files(&bad).len(), 3);
    let good = [sample("model/a.rs", "mod b;\nuse crate::model::a::b::X;"), sample("model/a/b.rs", "use super::Y;")];
    assert_eq!(cyclic_files(&good), BTreeMap::new(), "a module and its part");
    let strict = |parent: &str, part: &str| {
        let path = |name: &str| format!("{STRICT}{name}.rs");
        cyclic_files(&[sample(&path("a"), parent), sample(&path("a/b"), part), sample(&path("a/c"), "use super::b::g;")]).len()
    };
    let (parent, part) = ("mod b;\nmod c;\nstruct Y;\nfn f() { b::g(); }", "pub(super) fn g() {}");
    assert_eq!(strict(parent, part), 0, "a visibility names nothing");
    assert_eq!(strict(parent, "use super::Y;"), 2, "a part and a type of its parent");
    assert_eq!(strict(parent, "pub(super) fn g(y: &super::Y) {}"), 2);
    assert_eq!(strict("mod b;\nmod c;\nuse self::c::h;", "use super::Y;"), 3, "by a third file");
}

#[test]
fn reexported_name_is_of_the_file_that_defines_it() {
    let sample = |path: &str, text: &str| (path.to_owned(), format!("//! A sample.\n{text}"));
    for reexport in ["pub use b::X;\npub(super) use c::Y;", "pub(crate) use self::{b::X, c::Y};", "pub use crate::model::a::{b::X, c::Y};"]
    {
        let hub = [
            sample("model/a.rs", &format!("mod b;\nmod c;\n{reexport}")),
            sample("model/a/b.rs", "use super::Y;"),
            sample("model/a/c.rs", "use crate::model::a::X;"),
        ];
        assert_eq!(cyclic_files(&hub).into_keys().collect::<Vec<_>>(), ["model/a/b", "model/a/c"], "{reexport}");
    }
}

/// Layers of the controller model, from below. Each names the ones below it only.
const FLOORS: [&str; 6] = ["key", "policy", "workload", "egress", "ingress", "kinds"];

/// Imports of a file of the controller model from a layer above its own.
fn upward(files: &[(String, String)]) -> Vec<String> {
    let floor = |file: &str| {
        let name = file.strip_prefix("model/controller/")?.split('/').next()?;
        Some(FLOORS.iter().position(|floor| *floor == name).unwrap_or_else(|| panic!("{file} is in no layer")))
    };
    let arrows = file_arrows(files);
    let all = arrows.iter().flat_map(|(file, others)| others.iter().map(move |other| (file, other)));
    let up = all.filter(|(file, other)| floor(file).zip(floor(other)).is_some_and(|(own, named)| named > own));
    up.map(|(file, other)| format!("{file} names {other}")).collect()
}

#[test]
fn layers_of_the_controller_name_lower_ones_only() {
    let (_, files) = tree();
    assert_eq!(upward(&files), [""; 0]);
    let names = |own: &str, text: &str| {
        let sample = |path: &str, text: &str| (format!("model/controller/{path}.rs"), format!("//! A sample.\n{text}"));
        let both = [sample(own, text), sample("egress/b", ""), sample("workload/c", "pub use crate::model::controller::egress::b::X;")];
        upward(&both).len()
    };
    assert_eq!(names("ingress/a", "use crate::model::controller::egress::b;"), 1, "that of the sample itself");
    assert_eq!(names("policy/a", "use crate::model::controller::workload::c;"), 2);
    assert_eq!(names("workload/a", "use crate::model::controller::workload::c::X;"), 2, "a re-export hides nothing");
}

#[test]
fn layer_table_lists_allowed_imports() {
    let (layers, _) = tree();
    let names = |name: &str| layers[name].others.iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((names("api"), names("runtime"), names("model")), (vec![], vec![], vec!["api"]));
    assert_eq!(names("edge"), ["api", "model", "runtime"]);
    assert!(layers["edge"].apart && layers["cli"].everything && !layers["proxy"].everything);
    assert!(!layers["proxy"].others.contains("cli") && !layers["proxy"].others.contains("demo"));
}

/// Faults of one file with this text after its `//!`.
fn sample(path: &str, text: &str) -> Vec<String> {
    let (layers, _) = tree();
    faults(&layers, &[(path.to_owned(), format!("//! A sample.\n{text}"))])
}

#[test]
fn forbidden_imports_are_found() {
    let bad = [
        ("model/a.rs", "use crate::edge::nft;"),
        ("model/a.rs", "fn f() -> crate::runtime::tasks::Stop { todo() }"),
        ("api/a.rs", "use crate::{api::b, model::c};"),
        ("runtime/a.rs", "use crate::model::base::net::Port;"),
        ("edge/a.rs", "use crate::proxy::tailnet::daemon;"),
        ("runtime/a.rs", "use crate::edge::nft;"),
        ("edge/a.rs", "use crate::edge::link;"),
        ("edge/a.rs", "use super::link::Links;"),
        ("edge/a/b.rs", "use super::super::link::Links;"),
        ("edge/a/b.rs", "use crate::edge::{a::c, link};"),
        ("proxy/a.rs", "use crate::demo::topology;"),
        ("proxy/a.rs", "use crate::cli::proxy::ProxyArgs;"),
        ("proxy/a.rs", "use crate::{\n    model::base::net,\n    cli,\n};"),
        ("proxy/a/b.rs", "use super::super::super::cli;"),
        ("demo/a.rs", "use crate::cli;"),
        ("operator/a.rs", "use crate::model::base::net;"),
        ("reconciler/a.rs", "use crate::proxy::forwarding::ruleset_sync;"),
        ("proxy/a.rs", "use crate::reconciler::cache;"),
    ];
    for (path, text) in bad {
        assert_eq!(sample(path, text).len(), 1, "{path}: {text}: {:?}", sample(path, text));
    }
}

#[test]
fn allowed_imports_are_not_reported() {
    let good = [
        ("model/a.rs", "use crate::api::egress;\nuse crate::model::base::net;\nuse super::net::Port;"),
        ("edge/a/b.rs", "use super::AError;\nuse super::c::D;\nuse crate::edge::a::c;\nuse crate::model::base::net;"),
        ("proxy/a.rs", "use crate::{api::x, edge::y, model::z, runtime::w};\nuse crate::proxy::b;"),
        ("edge/a.rs", "use crate::runtime::command;"),
        ("cli/a.rs", "use crate::demo;\nuse crate::proxy;"),
        ("model/a.rs", "// use crate::edge::nft;\n/* crate::edge::x */ const A: &str = \"crate::edge::x\";"),
        ("model/a.rs", "/// See [`crate::edge::nft`].\nfn f() {}"),
        ("model/a.rs", "#[cfg(test)]\nmod tests {\n    use crate::edge::netns;\n    fn f() { let _ = Instant::now(); }\n}"),
        ("model/a/tests.rs", "use crate::edge::netns;\nuse tokio::time;"),
    ];
    for (path, text) in good {
        assert_eq!(sample(path, text), [""; 0], "{path}: {text}");
    }
}

#[test]
fn crates_outside_their_module_are_found() {
    let bad = [
        ("edge/conntrack.rs", "use socket2::Socket;"),
        ("edge/link.rs", "fn f(x: nftables::schema::Nftables) {}"),
        ("proxy/metrics.rs", "use prometheus::Registry;"),
        ("proxy/forwarding/resolve.rs", "use hickory_resolver::{Resolver, TokioResolver};"),
        ("proxy/state_secret/writer.rs", "pub use kube;"),
        ("runtime/admin.rs", "use clap::Args;"),
        ("edge/dnsmasq.rs", "use hickory_resolver::Resolver;"),
        ("edge/nft.rs", "use anyhow::Context as _;"),
    ];
    for (path, text) in bad {
        assert_eq!(sample(path, text).len(), 1, "{path}: {text}: {:?}", sample(path, text));
    }
    assert_eq!(sample("edge/dns.rs", "use hickory_resolver::Resolver;\nuse crate::model::kube::X;"), [""; 0]);
    assert_eq!(sample("edge/kube/list_watch.rs", "use kube::Client;"), [""; 0]);
}

#[test]
fn impure_model_code_is_found() {
    let bad = [
        ("model/a.rs", "use tokio::sync::watch;"),
        ("model/a.rs", "fn f() -> Instant { Instant::now() }"),
        ("model/a.rs", "fn f() { tracing::info!(\"x\") }"),
        ("model/a.rs", "use std::{collections::BTreeMap, fs};"),
        ("model/a.rs", "use std::net::{IpAddr, TcpStream};"),
        ("api/a.rs", "fn f() { std::env::var(\"x\") }"),
        ("model/a.rs", "fn f() { fastrand::f64() }"),
    ];
    for (path, text) in bad {
        assert_eq!(sample(path, text).len(), 1, "{path}: {text}: {:?}", sample(path, text));
    }
    assert_eq!(sample("model/a.rs", "use std::net::IpAddr;\nuse std::time::{Duration, Instant};"), [""; 0]);
    assert_eq!(sample("proxy/a.rs", "use tokio::sync::watch;"), [""; 0]);
}

#[test]
fn invalid_files_are_found() {
    let (layers, _) = tree();
    let one = |path: &str, text: String| faults(&layers, &[(path.to_owned(), text)]);
    assert_eq!(one("model/a.rs", "fn f() {}".to_owned()).len(), 1, "no //!");
    assert_eq!(sample("model/a/mod.rs", "").len(), 1);
    assert_eq!(sample("edge/utils.rs", "").len(), 1);
    assert_eq!(sample("edge/a.rs", &["// TO", "DO: later"].concat()).len(), 1);
    let long = "const A: u8 = 0;\n".repeat(LONGEST);
    assert_eq!(sample("model/a.rs", &long).len(), 2, "too long, and so is half of the files");
    let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
    assert_eq!(sample("model/a.rs", &tests), [""; 0], "tests do not count");
    let medium = "const A: u8 = 0;\n".repeat(MEDIAN);
    let files: Vec<_> = ["a", "b", "c"].iter().map(|name| (format!("model/{name}.rs"), format!("//! A.\n{medium}"))).collect();
    assert_eq!(faults(&layers, &files), ["half of the files have more than 150 lines of production code"]);
}
