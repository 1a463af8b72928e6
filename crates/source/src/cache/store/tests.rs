use super::*;
use crate::secret::SecretBytes;

fn commit() -> CommitId {
    CommitId::parse(&"a".repeat(40)).unwrap()
}

fn with_key(key: &str) -> Credentials {
    Credentials {
        ssh_key: Some(SecretBytes::new(key)),
        ..Credentials::default()
    }
}

/// Returns the folder of `https://host/NAME`.
fn folder(store: &Store, name: &str) -> PathBuf {
    let url = RepositoryUrl::parse(&format!("https://host/{name}")).unwrap();
    store.path(&url, &Credentials::default(), &commit())
}

#[tokio::test]
async fn tenants_with_other_keys_have_other_repositories() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let url = RepositoryUrl::parse("git@host:r").unwrap();
    let path = async |store: &Store, key| {
        let path = store.path(&url, &with_key(key), &commit());
        store.lock(&path).await.path.clone()
    };
    let first = path(&store, "a").await;
    assert_ne!(first, path(&store, "b").await);
    let again = Store::open(root.path().to_owned()).ok().unwrap();
    assert_eq!(
        first,
        path(&again, "a").await,
        "a restart finds its repositories again"
    );
}

#[tokio::test]
async fn fetches_into_one_repository_queue_and_reads_do_not() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let (a, b) = (folder(&store, "a"), folder(&store, "b"));
    let held = store.lock(&a).await;
    store.lock(&b).await;
    store.read(&a).await;
    let blocked = tokio::time::timeout(Duration::from_millis(50), store.lock(&a));
    assert!(blocked.await.is_err());
    drop(held);
    store.lock(&a).await;
}

#[tokio::test]
async fn least_recently_used_idle_repository_is_evicted() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let fill = |name: &str, age: u64| {
        let path = folder(&store, name);
        fs::create_dir_all(path.join("objects/pack")).unwrap();
        fs::write(path.join("objects/pack/a.pack"), [0; 100]).unwrap();
        let used = fs::File::create(path.join(USED)).unwrap();
        used.set_modified(SystemTime::now() - Duration::from_secs(age))
            .unwrap();
        path
    };
    let oldest = fill("oldest", 300);
    let old = fill("old", 200);
    let young = fill("young", 100);
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let _held = store.lock(&oldest).await;
    assert!(store.make_room(300).ok().unwrap());
    assert!(old.exists() && young.exists());
    assert!(store.make_room(200).ok().unwrap());
    assert!(!old.exists() && young.exists() && oldest.exists());
    assert!(!store.make_room(50).ok().unwrap(), "what is in use stays");
    assert!(!young.exists() && oldest.exists());
    assert_eq!(store.known.lock().len(), 1);
}

#[tokio::test]
async fn size_of_the_cache_is_known_without_reading_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let held = store.lock(&folder(&store, "a")).await;
    fs::create_dir_all(held.path.join("objects/pack")).unwrap();
    fs::write(held.path.join("objects/pack/a.pack"), [0; 100]).unwrap();
    assert!(store.make_room(99).ok().unwrap(), "not measured yet");
    assert_eq!(held.size(), 100);
    assert!(!store.make_room(99).ok().unwrap());
    held.clear().await.ok().unwrap();
    assert!(store.make_room(0).ok().unwrap());
}

#[tokio::test]
async fn last_use_is_known_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let path = folder(&store, "a");
    fs::create_dir_all(&path).unwrap();
    let used = fs::File::create(path.join(USED)).unwrap();
    used.set_modified(SystemTime::now() - Duration::from_hours(48))
        .unwrap();
    store.read(&path).await;
    let day = Duration::from_hours(24);
    assert_eq!(store.sweep(day).ok(), Some(0));
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    assert_eq!(store.sweep(day).ok(), Some(0));
    used.set_modified(SystemTime::now() - Duration::from_hours(48))
        .unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    assert_eq!(store.sweep(day).ok(), Some(1));
}

#[tokio::test]
async fn only_idle_unused_repositories_are_swept() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let path = folder(&store, "a");
    let held = store.lock(&path).await;
    fs::create_dir(&path).unwrap();
    assert_eq!(store.sweep(Duration::ZERO).ok(), Some(0));
    drop(held);
    let read = store.read(&path).await;
    assert_eq!(store.sweep(Duration::ZERO).ok(), Some(0));
    drop(read);
    assert_eq!(store.sweep(Duration::from_mins(1)).ok(), Some(0));
    assert_eq!(store.sweep(Duration::ZERO).ok(), Some(1));
}

#[tokio::test]
async fn files_are_removed_after_the_last_read() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    let path = folder(&store, "a");
    let held = store.lock(&path).await;
    fs::create_dir(&path).unwrap();
    let read = store.read(&path).await;
    let early = tokio::time::timeout(Duration::from_millis(50), held.clear());
    assert!(early.await.is_err() && path.exists());
    drop(read);
    held.clear().await.ok().unwrap();
    assert!(!path.exists());
}

#[test]
fn restart_removes_files_of_killed_calls() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    fs::create_dir(store.calls.join("call-x")).unwrap();
    fs::write(store.calls.join("call-x/key"), "secret").unwrap();
    fs::write(store.contexts.join("context"), "").unwrap();
    let store = Store::open(root.path().to_owned()).ok().unwrap();
    for folder in [store.calls, store.contexts] {
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }
}

#[test]
fn cache_path_with_shell_metacharacters_is_refused() {
    for root in ["/tmp/a b", "/tmp/a'b", "/tmp/$x", "/tmp/a;b"] {
        assert_eq!(
            Store::open(root.into()).err().unwrap().reason().as_str(),
            "GitCacheUnusable"
        );
    }
}
