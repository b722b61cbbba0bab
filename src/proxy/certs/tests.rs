use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::model::ingress::cert_store::CopiedCertificate;

const NAME: &str = "a.example.com";

/// A self-signed certificate of the name.
fn pair() -> Pair {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let bytes = |text: String| text.into_bytes().into();
    Pair { chain: bytes(made.cert.pem()), key: bytes(made.signing_key.serialize_pem()) }
}

/// A cluster whose API server cannot be reached.
async fn unreachable(dir: &Path) -> Cluster {
    let path = dir.join("kubeconfig");
    let text = r#"{"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}],
        "contexts":[{"name":"x","context":{"cluster":"c","user":"u","namespace":"ns"}}],"current-context":"x"}"#;
    std::fs::write(&path, text).expect("written");
    Cluster::kubeconfig(&path).await.expect("a cluster")
}

fn settings(copy: PathBuf) -> Settings {
    Settings {
        pod: "g-0".to_owned(),
        server: AcmeServer { directory: "http://127.0.0.1:1".to_owned(), ca: None },
        account: AccountAt { secret: "accounts".to_owned(), field: "key".to_owned() },
        terms: OrderTerms::ACME,
        lead: LeaseTerms::CERT_LEADER,
        leads: None,
        state: Some("g-0".to_owned()),
        copy: Some(copy),
    }
}

fn hosts(names: &[&str]) -> Arc<BTreeMap<String, Host>> {
    Arc::new(names.iter().map(|name| ((*name).to_owned(), Host { secret: (*name).to_owned(), issue: true })).collect())
}

fn copied(path: &Path) -> BTreeMap<String, Pair> {
    CertCopy::new(Some(path.to_owned())).load().into_iter().map(|(name, copied)| (name, copied.pair)).collect()
}

/// Writes the copy of an earlier container.
fn save(path: &Path, pairs: &BTreeMap<String, Pair>) {
    let copied = |(name, pair): (&String, &Pair)| (name.clone(), CopiedCertificate { pair: pair.clone(), secret: name.clone() });
    CertCopy::new(Some(path.to_owned())).save(pairs.iter().map(copied).collect(), Instant::now());
}

/// Whether the copy is complete within a minute.
async fn is_copied(path: &Path, pairs: &BTreeMap<String, Pair>) -> bool {
    for _ in 0..60 {
        if copied(path) == *pairs {
            return true;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    false
}

/// Starts a replica without an API server, whose certificates are those of the copy.
async fn start_from(path: &Path, dir: &TempDir, wanted: watch::Receiver<Arc<BTreeMap<String, Host>>>) -> (Tasks, CertOutputs) {
    let cluster = unreachable(dir.path()).await;
    let inputs = Inputs { cluster, api: LocalApi::new(dir.path().join("socket")), wanted, netmap: watch::channel(None).1 };
    let mut tasks = Tasks::default();
    let outputs = start(&mut tasks, &settings(path.to_owned()), inputs);
    (tasks, outputs)
}

#[tokio::test(start_paused = true)]
async fn certificates_are_copied_once_the_directory_can_be_written() {
    for obstacle in [None, Some("pod"), Some("pod/certificates.json.new")] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pod/certificates.json");
        let pairs = BTreeMap::from([(NAME.to_owned(), pair())]);
        save(&path, &pairs);
        let (_wanted, wanted) = watch::channel(hosts(&[NAME]));
        let (tasks, mut outputs) = start_from(&path, &dir, wanted).await;
        // Nothing has written the config files into the directory yet.
        std::fs::remove_dir_all(dir.path().join("pod")).expect("removed");
        let obstacle = obstacle.map(|name| dir.path().join(name));
        match &obstacle {
            Some(file) if file.parent() == Some(dir.path()) => std::fs::write(file, "").expect("a file"),
            Some(directory) => std::fs::create_dir_all(directory).expect("a directory"),
            None => {}
        }
        let running = tokio::spawn(tasks.run(Duration::from_secs(1)));
        outputs.pairs.wait_for(|served| **served == pairs).await.expect("the task runs");
        if let Some(obstacle) = &obstacle {
            assert!(!is_copied(&path, &pairs).await);
            std::fs::remove_file(obstacle).or_else(|_| std::fs::remove_dir(obstacle)).expect("removed");
        }
        assert!(is_copied(&path, &pairs).await, "{obstacle:?}");
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn copy_of_a_name_outlives_configs_without_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pod/certificates.json");
    let pairs = BTreeMap::from([(NAME.to_owned(), pair())]);
    save(&path, &pairs);
    let (names, wanted) = watch::channel(hosts(&[]));
    let (tasks, mut outputs) = start_from(&path, &dir, wanted).await;
    let running = tokio::spawn(tasks.run(Duration::from_secs(1)));
    for wanted in [&[NAME][..], &["b.example.com"], &[], &[NAME]] {
        names.send_replace(hosts(wanted));
        let expected = if wanted.contains(&NAME) { pairs.clone() } else { BTreeMap::new() };
        outputs.pairs.wait_for(|served| **served == expected).await.expect("the task runs");
        assert!(is_copied(&path, &pairs).await, "{wanted:?}");
    }
    running.abort();
}
