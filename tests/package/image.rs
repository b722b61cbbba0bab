//! Images written by `config/image/build`, read back with other tools: every digest, the contents, and equal bytes for equal inputs.
//!
//! Needs python3 and the Debian packages of `tests/setup`; the product's image needs the programs of `tests/servers/build`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Unpacked image: the layout, its parsed documents and the root file system.
struct Unpacked {
    place: tempfile::TempDir,
    manifest: Value,
    config: Value,
}

/// Runs a program, which must succeed; returns its output.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stderr(Stdio::inherit()).output().unwrap_or_else(|fault| panic!("{program}: {fault}"));
    assert!(output.status.success(), "{program} {args:?}: {}", output.status);
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Builds an image; returns the printed digest.
fn build(args: &[&str]) -> String {
    run(concat!(env!("CARGO_MANIFEST_DIR"), "/config/image/build"), args)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

impl Unpacked {
    /// Unpacks an image and verifies the digest and size of every blob.
    fn open(tar: &Path, digest: &str) -> Self {
        let place = tempfile::TempDir::new().expect("a directory");
        let layout = text(place.path());
        run("tar", &["-C", &layout, "-xf", &text(tar)]);
        assert_eq!(json(&place.path().join("oci-layout"))["imageLayoutVersion"], "1.0.0");
        let index = json(&place.path().join("index.json"));
        assert_eq!(index["manifests"][0]["digest"], digest);
        let manifest = json(&blob(place.path(), &index["manifests"][0]));
        let config = json(&blob(place.path(), &manifest["config"]));
        fs::create_dir(place.path().join("root")).expect("a directory");
        let unpacked = Self { place, manifest, config };
        let mut blobs = 2;
        for (layer, diff) in unpacked.layers() {
            let kind = layer["mediaType"].as_str().expect("a kind");
            let filter = if kind.ends_with("+gzip") { "gzip -dc" } else { "cat" };
            let path = text(&blob(unpacked.place.path(), &layer));
            let sum = run("sh", &["-c", "$1 <\"$2\" | sha256sum", "sum", filter, &path]);
            assert_eq!(format!("sha256:{}", sum.trim_end_matches(" -").trim()), diff);
            run("tar", &["-C", &text(&unpacked.root()), "-xf", &path]);
            blobs += 1;
        }
        let blob_count = fs::read_dir(unpacked.place.path().join("blobs/sha256")).expect("a directory").count();
        assert_eq!(blob_count, blobs, "nothing else is in the layout");
        unpacked
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    fn layers(&self) -> Vec<(Value, String)> {
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let diffs = list(&self.config["rootfs"]["diff_ids"]);
        let layers = list(&self.manifest["layers"]);
        assert_eq!(layers.len(), diffs.len());
        layers.into_iter().zip(diffs).map(|(layer, diff)| (layer, diff.as_str().expect("a digest").to_owned())).collect()
    }

    /// Output of a program of the image, with only the image's files and without a network.
    fn ask(&self, argv: &[&str]) -> String {
        let root = text(&self.root());
        run("unshare", &[&["--net", "chroot", root.as_str()][..], argv].concat())
    }
}

/// File of a blob, verified against its descriptor.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
    let path = layout.join("blobs/sha256").join(digest);
    assert_eq!(run("sha256sum", &[&text(&path)]).split(' ').next(), Some(digest));
    assert_eq!(fs::metadata(&path).expect("a blob").len(), descriptor["size"].as_u64().expect("a size"));
    path
}

#[test]
fn image_build_is_reproducible() {
    let place = tempfile::TempDir::new().expect("a directory");
    let mut written = Vec::new();
    let nft = PathBuf::from(run("sh", &["-c", "PATH=$PATH:/usr/sbin command -v nft"]));
    for turn in ["one", "two"] {
        // Another directory, another time, and another mode of the same file.
        let (source, out) = (place.path().join(turn), place.path().join(turn).join("image.tar"));
        fs::create_dir(&source).expect("a directory");
        fs::write(source.join("greeting"), "hello\n").expect("written");
        run("touch", &["-d", if turn == "one" { "2001-01-01" } else { "2002-02-02" }, &text(&source.join("greeting"))]);
        run("chmod", &[if turn == "one" { "600" } else { "644" }, &text(&source.join("greeting"))]);
        let greeting = format!("{}=/etc/greeting", text(&source.join("greeting")));
        let args = ["plain", "--name", "lab/tiny:1", "--out", &text(&out), "--program", &text(&nft), "--program", &greeting];
        let digest = build(&[&args[..], &["--link", "/hello=etc/greeting", "--cmd", "/usr/sbin/nft"]].concat());
        written.push((digest, fs::read(&out).expect("an image")));
    }
    assert_eq!(written[0].0, written[1].0);
    assert!(written[0].1 == written[1].1, "the archives differ");

    let tiny = Unpacked::open(&place.path().join("one/image.tar"), &written[0].0);
    assert_eq!(tiny.config["config"]["Cmd"], serde_json::json!(["/usr/sbin/nft"]));
    assert!(tiny.ask(&["/usr/sbin/nft", "--version"]).starts_with("nftables"), "it runs by the image's own libraries");
    assert_eq!(fs::read_to_string(tiny.root().join("hello")).expect("through the link"), "hello\n");
}

#[test]
fn missing_image_program_is_an_error() {
    let place = tempfile::TempDir::new().expect("a directory");
    let out = text(&place.path().join("image.tar"));
    for program in ["/usr/sbin/no-such-program", "/etc/hostname"] {
        let args = ["plain", "--name", "lab/tiny:1", "--out", &out, "--program", program];
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/image/build")).args(args).output().expect("python3");
        assert!(!output.status.success(), "{program}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(program), "{output:?}");
        assert!(!Path::new(&out).exists(), "{program}: half an image is none");
    }
}

#[test]
fn product_image_runs_the_proxy_and_has_labels() {
    let place = tempfile::TempDir::new().expect("a directory");
    let out = place.path().join("tailyard.tar");
    let servers = text(&kit::servers::servers(&["tailscaled", "tailscale"]));
    let args = ["tailyard", "--servers", &servers, "--binary", kit::tailyard(), "--out", &text(&out), "--plain-layers"];
    let digest = build(&args);
    let image = Unpacked::open(&out, &digest);
    let config = &image.config["config"];
    assert_eq!((&config["Entrypoint"][0], &config["Cmd"][0]), (&"/usr/local/bin/tailyard".into(), &"proxy".into()));
    assert_eq!(config["Labels"]["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(image.ask(&["/usr/local/bin/tailyard", "version"]), concat!("tailyard ", env!("CARGO_PKG_VERSION")));
    assert!(!image.ask(&["/usr/local/bin/tailscaled", "--version"]).is_empty());
    for program in ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy", "iptables", "ip6tables"] {
        let version = image.ask(&[&format!("/usr/sbin/{program}"), "--version"]);
        assert!(version.starts_with(program.split('-').next().expect("a name")), "{program}: {version}");
    }
    let authorities = fs::read_to_string(image.root().join("etc/ssl/certs/ca-certificates.crt")).expect("authorities");
    assert!(authorities.matches("-----BEGIN CERTIFICATE-----").count() > 50);

    let bill = json(&image.root().join("usr/share/doc/tailyard/sbom.spdx.json"));
    assert_eq!(bill, json(&place.path().join("tailyard.spdx.json")), "the same beside the image");
    assert_eq!(bill["spdxVersion"], "SPDX-2.3");
    let packages = bill["packages"].as_array().expect("a list");
    let named = |name: &str| packages.iter().find(|package| package["name"] == name).unwrap_or_else(|| panic!("{name} is not in the bill"));
    let purl = |name: &str| named(name)["externalRefs"][0]["referenceLocator"].as_str().expect("text").to_owned();
    assert!(purl("tokio").starts_with("pkg:cargo/tokio@") && named("tokio")["licenseDeclared"] == "MIT");
    assert!(purl("libnftables1").starts_with("pkg:deb/debian/libnftables1@"));
    assert!(purl("tailscale.com").starts_with("pkg:golang/tailscale.com@v1."));
    assert_eq!(named("tailscale.com")["sourceInfo"], "a modified copy of this version, made by tests/servers/build");
    let of_the_checkout = |package: &Value| package["name"].as_str().is_some_and(|name| name.starts_with("tests/"));
    assert!(!packages.iter().any(of_the_checkout), "a module of the checkout is no package");
    assert!(packages.iter().all(|package| package["name"] != "proptest"), "what only tests need is not in the image");
    let ids: std::collections::BTreeSet<_> = packages.iter().map(|package| package["SPDXID"].as_str()).collect();
    assert_eq!(ids.len(), packages.len(), "every package has an identifier of its own");
}

#[test]
fn dockerfile_uses_the_pinned_versions() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file");
    let (build, dockerfile, toolchain) = (read("tests/servers/build"), read("config/image/Dockerfile"), read("rust-toolchain.toml"));
    assert!(dockerfile.contains("/src/tests/servers/build tailscaled tailscale)"), "with the pins of the tests");
    let image = |name: &str| dockerfile.split(&format!("FROM {name}:")).nth(1).and_then(|rest| rest.split('-').next()).expect("a version");
    let (go, rust) = (image("golang"), image("rust"));
    assert!(build.contains(&format!("GOTOOLCHAIN=go{go}.")), "Go {go} is not that of the checkout");
    assert!(toolchain.contains(&format!("channel = \"{rust}.")), "Rust {rust} is not that of the checkout");
    assert!(dockerfile.ends_with("ENTRYPOINT [\"/usr/local/bin/tailyard\"]\nCMD [\"proxy\"]\n"));
}
