use std::os::unix::fs::symlink;
use std::time::Duration;

use kit::wait::wait_for_value;
use tempfile::TempDir;
use tokio::sync::watch::Receiver;

use super::watch::{FileWatcher, FilesView, directory, file};
use super::*;

const NAMES: [&str; 2] = ["a", "b"];

fn names() -> Vec<String> {
    NAMES.map(str::to_owned).to_vec()
}

/// Updates a volume like the kubelet: writes a new set of files and moves `..data` to it.
fn project(volume: &Path, set: &str, files: &[(&str, &str)]) {
    let target = volume.join(set);
    fs::create_dir_all(&target).expect("set");
    for (name, content) in files {
        fs::write(target.join(name), content).expect("file");
    }
    let temporary = volume.join("..data_tmp");
    symlink(set, &temporary).expect("link");
    let old = fs::read_link(volume.join(DATA)).ok();
    fs::rename(&temporary, volume.join(DATA)).expect("swap");
    for (name, _) in files {
        symlink(Path::new(DATA).join(name), volume.join(name)).ok();
    }
    if let Some(old) = old {
        fs::remove_dir_all(volume.join(old)).expect("old set");
    }
}

fn files(pairs: &[(&str, &str)]) -> BTreeMap<String, Bytes> {
    pairs.iter().map(|(name, content)| ((*name).to_owned(), Bytes::copy_from_slice(content.as_bytes()))).collect()
}

const DEADLINE: Duration = Duration::from_secs(10);

fn shows(view: &FilesView, pairs: &[(&str, &str)]) -> bool {
    view.fault.is_none() && view.snapshot.as_ref().is_some_and(|snapshot| snapshot.files == files(pairs))
}

fn start((watcher, view): (FileWatcher, Receiver<FilesView>)) -> Receiver<FilesView> {
    tokio::spawn(watcher.run());
    view
}

#[test]
fn projected_volume_is_read_through_its_data_link() {
    let volume = TempDir::new().expect("tempdir");
    project(volume.path(), "..1", &[("a", "1"), ("b", "1"), ("c", "of no interest")]);
    let snapshot = read(volume.path(), &names()).expect("readable");
    assert_eq!(snapshot, Snapshot { files: files(&[("a", "1"), ("b", "1")]), projected: true });
    project(volume.path(), "..2", &[("b", "2")]);
    assert_eq!(read(volume.path(), &names()).expect("readable").files, files(&[("b", "2")]), "a dangling link is no file");
}

#[test]
fn snapshot_never_mixes_two_versions_of_a_volume() {
    let volume = TempDir::new().expect("tempdir");
    let path = volume.path().to_owned();
    project(&path, "..0", &[("a", "0"), ("b", "0")]);
    let writer = std::thread::spawn(move || {
        for round in 1..300 {
            let text = round.to_string();
            project(&path, &format!("..{round}"), &[("a", &text), ("b", &text)]);
        }
    });
    let mut readings = 0;
    while !writer.is_finished() {
        match read(volume.path(), &names()) {
            Ok(snapshot) => assert_eq!((snapshot.files.len(), snapshot.files.get("a")), (2, snapshot.files.get("b"))),
            Err(error) => assert_eq!(error.reason(), "Unsettled"),
        }
        readings += 1;
    }
    writer.join().expect("writer");
    assert!(readings > 10, "{readings} readings");
}

#[test]
fn file_errors_name_the_action() {
    let volume = TempDir::new().expect("tempdir");
    let missing = read(&volume.path().join("none"), &names()).expect_err("no directory");
    assert!(missing.reason() == "NoDirectory" && missing.to_string().contains("mounted"), "{missing}");
    fs::create_dir(volume.path().join("a")).expect("directory");
    let odd = read(volume.path(), &names()).expect_err("no file");
    assert!(odd.reason() == "Unreadable" && odd.to_string().contains("permissions"), "{odd}");
    fs::write(volume.path().join("plain"), "").expect("file");
    assert_eq!(read(&volume.path().join("plain"), &names()).expect_err("a file").reason(), "NoDirectory");
    assert_eq!(replace(&volume.path().join("none/x"), b"").expect_err("no directory").reason(), "Unwritable");
}

#[test]
fn replace_leaves_no_temporary_file() {
    let volume = TempDir::new().expect("tempdir");
    let path = volume.path().join("state.json");
    for content in ["{}", r#"{"a":"1"}"#] {
        replace(&path, content.as_bytes()).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("readable"), content);
    }
    assert_eq!(fs::read_dir(volume.path()).expect("directory").count(), 1);
}

/// The first poll is a day away: only an inotify event can cause an earlier read.
#[tokio::test]
async fn swap_is_published_by_inotify_before_the_next_poll() {
    let volume = TempDir::new().expect("tempdir");
    project(volume.path(), "..1", &[("a", "1")]);
    let (mut watcher, view) = directory(volume.path(), &NAMES);
    watcher.poll_interval = Duration::from_hours(24);
    let mut view = start((watcher, view));
    assert!(wait_for_value("first", DEADLINE, &mut view, |view| shows(view, &[("a", "1")])).await.notified);
    project(volume.path(), "..2", &[("a", "2"), ("b", "2")]);
    wait_for_value("swapped", DEADLINE, &mut view, |view| shows(view, &[("a", "2"), ("b", "2")])).await;
    fs::remove_dir_all(volume.path()).expect("removed");
    wait_for_value("gone", DEADLINE, &mut view, |view| view.fault.is_some()).await;
}

#[tokio::test]
async fn change_without_inotify_is_found_by_polling() {
    let volume = TempDir::new().expect("tempdir");
    let (mut watcher, view) = directory(volume.path(), &NAMES);
    watcher.inotify = false;
    let mut view = start((watcher, view));
    assert!(!wait_for_value("nothing there", DEADLINE, &mut view, |view| shows(view, &[])).await.notified);
    fs::write(volume.path().join("a"), "1").expect("file");
    wait_for_value("found", DEADLINE, &mut view, |view| shows(view, &[("a", "1")])).await;
}

#[tokio::test]
async fn watcher_follows_a_directory_that_is_created_removed_and_recreated() {
    let parent = TempDir::new().expect("tempdir");
    let volume = parent.path().join("volume");
    let mut view = start(directory(&volume, &NAMES));
    let fault = |view: &FilesView| view.fault.as_ref().map(|fault| fault.reason()) == Some("NoDirectory");
    wait_for_value("not there", DEADLINE, &mut view, fault).await;
    for round in ["1", "2"] {
        project(&volume, "..1", &[("a", round)]);
        wait_for_value("there", DEADLINE, &mut view, |view| shows(view, &[("a", round)]) && view.notified).await;
        fs::remove_dir_all(&volume).expect("removed");
        let gone = wait_for_value("gone", DEADLINE, &mut view, fault).await;
        assert_eq!(gone.snapshot.expect("kept").files, files(&[("a", round)]), "what was read last stays known");
    }
}

#[tokio::test]
async fn empty_plain_file_is_published_only_if_a_second_read_finds_it_empty() {
    let volume = TempDir::new().expect("tempdir");
    let path = volume.path().join("a");
    fs::write(&path, "1").expect("file");
    let (watcher, view, name) = file(&path);
    assert_eq!(name, "a");
    let (mut events, mut stamp) = (None, None);
    assert_eq!(watcher.look(&mut events, &mut stamp, false).await, (false, true));
    drop(fs::File::create(&path).expect("truncated"));
    assert_eq!(watcher.look(&mut events, &mut stamp, false).await, (true, false), "to be read again");
    assert!(shows(&view.borrow(), &[("a", "1")]), "the empty moment is not published: {:?}", view.borrow());
    fs::write(&path, "2").expect("written");
    assert_eq!(watcher.look(&mut events, &mut stamp, true).await, (false, true));
    assert!(shows(&view.borrow(), &[("a", "2")]), "{:?}", view.borrow());
    fs::write(&path, "").expect("emptied");
    assert_eq!(watcher.look(&mut events, &mut stamp, false).await, (true, false));
    assert_eq!(watcher.look(&mut events, &mut stamp, true).await, (false, true));
    assert!(shows(&view.borrow(), &[("a", "")]), "{:?}", view.borrow());
}

#[tokio::test]
async fn emptied_plain_file_is_published_by_a_running_watcher() {
    let volume = TempDir::new().expect("tempdir");
    let path = volume.path().join("a");
    fs::write(&path, "1").expect("file");
    let (watcher, view, _) = file(&path);
    let mut view = start((watcher, view));
    wait_for_value("first", DEADLINE, &mut view, |view| shows(view, &[("a", "1")])).await;
    fs::write(&path, "").expect("emptied");
    wait_for_value("an empty file that stays empty", DEADLINE, &mut view, |view| shows(view, &[("a", "")])).await;
}

#[tokio::test]
async fn same_content_in_a_new_set_is_not_published_again() {
    let volume = TempDir::new().expect("tempdir");
    project(volume.path(), "..0", &[("a", "0")]);
    let (watcher, mut view) = directory(volume.path(), &NAMES);
    let (mut events, mut stamp) = (None, None);
    assert_eq!(watcher.look(&mut events, &mut stamp, false).await, (false, true));
    assert!(shows(&view.borrow_and_update(), &[("a", "0")]));
    project(volume.path(), "..same", &[("a", "0")]);
    assert_eq!(watcher.look(&mut events, &mut stamp, false).await, (false, false));
    assert!(!view.has_changed().expect("the watcher is there"));
}

#[tokio::test]
async fn burst_of_swaps_is_published_in_order_and_ends_with_its_last() {
    let volume = TempDir::new().expect("tempdir");
    project(volume.path(), "..0", &[("a", "0")]);
    let mut view = start(directory(volume.path(), &NAMES));
    wait_for_value("first", DEADLINE, &mut view, |view| shows(view, &[("a", "0")])).await;
    let path = volume.path().to_owned();
    let writer = tokio::task::spawn_blocking(move || {
        for round in 1..=200 {
            project(&path, &format!("..{round}"), &[("a", &round.to_string())]);
        }
    });
    let mut rounds = vec![0];
    while rounds.last() != Some(&200) {
        tokio::time::timeout(Duration::from_secs(10), view.changed()).await.expect("the last one is published").expect("running");
        // A set that is replaced during each attempt is a fault until the next read.
        let read = view.borrow_and_update().snapshot.clone().expect("read").files;
        let round = std::str::from_utf8(&read["a"]).expect("text").parse::<u32>().expect("a number");
        rounds.extend((rounds.last() != Some(&round)).then_some(round));
    }
    assert!(rounds.is_sorted(), "{rounds:?}");
    writer.await.expect("written");
}
