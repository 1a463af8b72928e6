//! Tests the number of git calls for many modules of one repository, over several commits.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alustan_source::{
    CacheOptions, CommitId, Context, ContextSpec, Credentials, Error, GitCache, RepositoryUrl,
    Revision,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::{HttpServer, Origin, Rules, TestCache, assert_failure};

const MODULES: usize = 1_000;
const SHARED: usize = 10;
const AT_ONCE: usize = 8;

/// A script `git` that records its calls by subcommand, waits while the file `hold-SUBCOMMAND` exists, and then runs the real git.
struct CountingGit {
    folder: tempfile::TempDir,
}

impl CountingGit {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let real = std::env::split_paths(&path)
            .map(|folder| folder.join("git"))
            .find(|git| git.exists())
            .unwrap();
        let script = format!(
            "#!/bin/sh\n\
             for word; do\n\
             case $word in init|ls-remote|ls-tree|cat-file|fetch|config)\n\
             case $* in *' --batch') word=batch;; esac\n\
             echo $word >> {folder}/calls\n\
             while [ -e {folder}/hold-$word ]; do sleep 0.02; done\n\
             break;;\n\
             esac\n\
             done\n\
             exec {real} \"$@\"\n",
            folder = folder.path().display(),
            real = real.display()
        );
        let program = folder.path().join("git");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn cache(&self, at_once: usize) -> TestCache {
        let mut options = CacheOptions {
            at_once,
            ..CacheOptions::default()
        };
        let path = std::env::var_os("PATH").unwrap();
        let folders =
            std::iter::once(self.folder.path().to_owned()).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).unwrap();
        options.environment.insert("PATH".to_owned(), path);
        TestCache::with(options)
    }

    /// Returns the number of calls of `subcommand` so far. `batch` means `cat-file --batch`, which reads files.
    fn calls(&self, subcommand: &str) -> usize {
        let calls = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        calls.lines().filter(|call| *call == subcommand).count()
    }

    fn hold(&self, subcommand: &str) -> Held {
        let file = self.folder.path().join(format!("hold-{subcommand}"));
        std::fs::write(&file, "").unwrap();
        Held(file)
    }

    async fn until(&self, subcommand: &str, calls: usize) {
        while self.calls(subcommand) < calls {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Guard that makes all calls of one git subcommand wait until the guard is dropped.
struct Held(PathBuf);

impl Drop for Held {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn module(number: usize) -> String {
    format!("modules/{number:04}")
}

/// Creates a repository with `modules` modules, each of which calls one of `SHARED` local modules.
fn monorepo(modules: usize) -> Origin {
    let text = |number: usize| {
        let shared = number % SHARED;
        format!("# {number}\nmodule \"x\" {{\n  source = \"../../shared/{shared}\"\n}}\n")
    };
    let of_module = |number| (format!("{}/main.tf", module(number)), text(number));
    let of_shared = |number| {
        let text = format!("# shared {number}\n");
        (format!("shared/{number}/main.tf"), text)
    };
    let files: Vec<(String, String)> = (0..modules)
        .map(of_module)
        .chain((0..SHARED).map(of_shared))
        .collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    Origin::with(&files)
}

async fn serve(folder: &Path) -> HttpServer {
    HttpServer::plain(folder, Rules::default()).await
}

/// Newest revision of the branch, which all requests want. The tests set a later revision.
type Head = Arc<Mutex<Revision>>;

/// Context of the module `number`, and the revision that was read.
#[derive(Debug)]
struct Answer {
    number: usize,
    revision: Revision,
    context: Context,
}

type Request = JoinHandle<Result<Answer, Error>>;

async fn find(cache: GitCache, url: String, head: Head, number: usize) -> Result<Answer, Error> {
    let spec = ContextSpec {
        path: Some(module(number)),
        ..ContextSpec::default()
    };
    let url = RepositoryUrl::parse(&url)?;
    let newest = move || head.lock().unwrap().clone();
    let none = Credentials::default();
    let context = cache.find_context(&url, &newest, &spec, &none, &|_| true);
    let (revision, context) = context.await;
    Ok(Answer {
        number,
        revision,
        context: context?,
    })
}

/// Requests contexts of modules in the given order.
fn request_all(
    cache: &TestCache,
    url: &str,
    head: &Head,
    numbers: impl Iterator<Item = usize>,
) -> Vec<Request> {
    numbers
        .map(|number| {
            let (cache, url, head) = (cache.cache.clone(), url.to_owned(), head.clone());
            tokio::spawn(find(cache, url, head, number))
        })
        .collect()
}

async fn all(requests: Vec<Request>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.unwrap().unwrap());
    }
    answers
}

fn packed(answers: &[Answer]) -> Vec<usize> {
    answers
        .iter()
        .filter(|answer| answer.context.archive.is_some())
        .map(|answer| answer.number)
        .collect()
}

/// A commit costs one `fetch`, one `ls-tree`, and for each changed module two `cat-file` calls and one packed context.
#[tokio::test(flavor = "multi_thread")]
async fn commit_to_a_monorepo_packs_the_modules_that_it_changes() {
    let (origin, git) = (monorepo(MODULES), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(AT_ONCE));
    let (url, none) = (server.url(), Credentials::default());
    let head = cache.resolve(&url, None, &none).await.unwrap();
    let head = Arc::new(Mutex::new(head));
    let mut before = all(request_all(&cache, &url, &head, 0..MODULES)).await;
    assert_eq!(packed(&before).len(), MODULES);
    assert_eq!((git.calls("fetch"), git.calls("ls-tree")), (1, 1));
    let mut batches = git.calls("batch");
    // One call reads the commit. Two calls per module read its configuration and its files. In addition, each concurrent reader reads each shared
    // module at most once.
    assert!(batches <= 1 + 2 * MODULES + AT_ONCE * SHARED, "{batches}");

    for (commit, (file, changed)) in [
        ("README", vec![]),
        ("modules/0007/main.tf", vec![7]),
        ("shared/3/main.tf", (3..MODULES).step_by(SHARED).collect()),
    ]
    .into_iter()
    .enumerate()
    {
        let pushed = origin.commit(&[(file, "# changed\n")]);
        let revision = cache.resolve(&url, None, &none).await.unwrap();
        assert_eq!(revision.commit.as_str(), pushed);
        *head.lock().unwrap() = revision.clone();
        let answers = all(request_all(&cache, &url, &head, 0..MODULES)).await;
        assert_eq!(packed(&answers), changed, "{file}");
        assert!(answers.iter().all(|answer| answer.revision == revision));
        for (old, new) in before.iter().zip(&answers) {
            let differs = changed.contains(&new.number);
            let (old, new) = (&old.context, &new.context);
            assert_eq!(old.digest != new.digest, differs, "{file}: {new:?}");
            assert!(differs || old.size == new.size);
        }
        let commits = commit + 2;
        assert_eq!(
            (git.calls("fetch"), git.calls("ls-tree")),
            (commits, commits)
        );
        let read = git.calls("batch") - batches;
        // One call reads the commit. Two calls per changed module read its configuration and its files.
        assert!(read <= 1 + 2 * changed.len(), "{file}: {read}");
        batches += read;
        before = answers;
    }
    // `fetch_context`, which the controller calls to push a context, packs the same files again.
    let context = cache.context(&url, &module(1), &none).await.unwrap();
    assert!(context.archive.is_some() && context.digest == before[1].context.digest);
}

/// A request whose answer is in memory starts no git process, and writes no credentials to disk.
#[tokio::test]
async fn unchanged_module_needs_neither_git_nor_a_session() {
    let (origin, git) = (monorepo(1), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(AT_ONCE));
    let (url, none) = (server.url(), Credentials::default());
    let head = cache.resolve(&url, None, &none).await.unwrap();
    let head = Arc::new(Mutex::new(head));
    let first = all(request_all(&cache, &url, &head, 0..1)).await;
    assert_eq!(packed(&first), [0]);
    let calls = git.folder.path().join("calls");
    let before = std::fs::read_to_string(&calls).unwrap();
    // A session creates a folder here.
    std::fs::remove_dir_all(cache.root.path().join("calls")).unwrap();
    let again = all(request_all(&cache, &url, &head, 0..1)).await;
    assert_eq!(again[0].context.digest, first[0].context.digest);
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), before);
}

#[tokio::test]
async fn unusable_cache_directory_is_not_a_damaged_repository() {
    let (origin, git) = (monorepo(1), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(AT_ONCE));
    let (url, none) = (server.url(), Credentials::default());
    let contexts = cache.root.path().join("contexts");
    std::fs::remove_dir(&contexts).unwrap();
    let error = cache.context(&url, &module(0), &none).await.unwrap_err();
    let words = ["failed to pack a context", &contexts.to_string_lossy()];
    assert_failure(&error, "GitCacheUnusable", true, &words);
    std::fs::create_dir(&contexts).unwrap();
    cache.context(&url, &module(0), &none).await.unwrap();
    assert_eq!(git.calls("fetch"), 1);
}

#[tokio::test]
async fn superseded_requests_keep_their_queue_position() {
    const ASKED: usize = 40;
    let (origin, git) = (monorepo(ASKED), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(1));
    let (url, none) = (server.url(), Credentials::default());
    let first = cache.resolve(&url, None, &none).await.unwrap();
    let head = Arc::new(Mutex::new(first.clone()));
    let pause = git.hold("batch");
    let answers = Arc::<Mutex<Vec<(usize, Revision)>>>::default();
    let recorded = |requests: Vec<Request>| {
        let record = |request: Request| {
            let answers = answers.clone();
            tokio::spawn(async move {
                let answer = request.await.unwrap().unwrap();
                let entry = (answer.number, answer.revision);
                answers.lock().unwrap().push(entry);
            })
        };
        requests.into_iter().map(record).collect::<Vec<_>>()
    };
    let mut requests = recorded(request_all(&cache, &url, &head, 0..ASKED));
    git.until("batch", 1).await;

    // The first request holds the read permit when the next commit arrives. All other requests wait for the permit.
    origin.commit(&[("modules/0001/main.tf", "# changed\n")]);
    let second = cache.resolve(&url, None, &none).await.unwrap();
    *head.lock().unwrap() = second.clone();
    requests.extend(recorded(request_all(&cache, &url, &head, 0..1)));
    git.until("fetch", 2).await;
    // The cache has one permit for calls to remotes, and the fetch holds the permit. `resolve` therefore returns after the fetch.
    cache.resolve(&url, None, &none).await.unwrap();
    drop(pause);
    for request in requests {
        request.await.unwrap();
    }
    let answers = answers.lock().unwrap().clone();
    let order: Vec<usize> = answers.iter().map(|(number, _)| *number).collect();
    assert_eq!(order, (0..ASKED).chain([0]).collect::<Vec<_>>());
    let revisions = answers.iter().map(|(_, revision)| revision.clone());
    let wanted = std::iter::once(first).chain(std::iter::repeat_n(second, ASKED));
    assert!(revisions.eq(wanted), "{answers:?}");
    assert_eq!((git.calls("fetch"), git.calls("ls-tree")), (2, 2));
}

#[tokio::test]
async fn modules_are_read_while_another_commit_is_fetched() {
    let (origin, git) = (monorepo(4), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(1));
    let (url, none) = (server.url(), Credentials::default());
    let first = cache.resolve(&url, None, &none).await.unwrap();
    let head = Arc::new(Mutex::new(first.clone()));
    all(request_all(&cache, &url, &head, 0..1)).await;
    origin.commit(&[("README", "2")]);
    let second = cache.resolve(&url, None, &none).await.unwrap();
    let pause = git.hold("fetch");
    let later = request_all(&cache, &url, &Arc::new(Mutex::new(second.clone())), 0..4);
    git.until("fetch", 2).await;
    let answers = all(request_all(&cache, &url, &head, 0..4)).await;
    assert!(answers.iter().all(|answer| answer.revision == first));
    assert!(later.iter().all(|request| !request.is_finished()));
    drop(pause);
    let answers = all(later).await;
    assert!(answers.iter().all(|answer| answer.revision == second));
}

/// A server that accepts connections and never responds must not delay repositories of other tenants.
#[tokio::test]
async fn hanging_server_of_one_tenant_does_not_delay_another() {
    let (origin, cache) = (monorepo(1), TestCache::new());
    let server = serve(origin.folder.path()).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let busy = cache.cache.of_tenant("busy");
    let mut hanging = Vec::new();
    for number in 0..2 * AT_ONCE {
        let url = format!("http://{address}/{number}.git");
        let head = Revision::of_commit(&CommitId::parse(&"a".repeat(40)).unwrap());
        let head = Arc::new(Mutex::new(head));
        hanging.push(tokio::spawn(find(busy.clone(), url, head, 0)));
    }
    // One tenant has at most half of the permits.
    let mut connections = Vec::new();
    for _ in 0..AT_ONCE / 2 {
        connections.push(silent.accept().await.unwrap());
    }
    let (url, none) = (server.url(), Credentials::default());
    let team = TestCache {
        cache: cache.cache.of_tenant("team"),
        root: cache.root.clone(),
    };
    team.context(&url, &module(0), &none).await.unwrap();
    assert!(hanging.iter().all(|request| !request.is_finished()));
}

#[tokio::test]
async fn fetch_failure_is_shared_by_all_waiting_callers() {
    let (origin, git) = (monorepo(2), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(AT_ONCE));
    let (url, none) = (server.url(), Credentials::default());
    let head = cache.resolve(&url, None, &none).await.unwrap();
    let head = Arc::new(Mutex::new(head));
    drop(server);
    let requests = request_all(&cache, &url, &head, std::iter::repeat_n(0, 50));
    for request in requests {
        let error = request.await.unwrap().unwrap_err();
        assert_eq!(error.reason().as_str(), "RepositoryUnreachable", "{error}");
    }
    assert_eq!(git.calls("fetch"), 1);
    // A request after the failure fetches again.
    request_all(&cache, &url, &head, 0..1)
        .pop()
        .unwrap()
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(git.calls("fetch"), 2);
}

#[tokio::test]
async fn superseded_commit_waiting_for_a_fetch_is_not_fetched() {
    const COMMITS: usize = 5;
    let (origin, git) = (monorepo(COMMITS + 1), CountingGit::new());
    let (server, cache) = (serve(origin.folder.path()).await, git.cache(AT_ONCE));
    let (url, none) = (server.url(), Credentials::default());
    let first = cache.resolve(&url, None, &none).await.unwrap();
    let head = Arc::new(Mutex::new(first.clone()));
    let pause = git.hold("fetch");
    let mut requests = request_all(&cache, &url, &head, 0..1);
    git.until("fetch", 1).await;
    for number in 1..=COMMITS {
        origin.commit(&[("README", &number.to_string())]);
        let newest = cache.resolve(&url, None, &none).await.unwrap();
        *head.lock().unwrap() = newest;
        requests.extend(request_all(&cache, &url, &head, std::iter::once(number)));
        // The request starts to wait for the fetch of the first commit.
        tokio::task::yield_now().await;
    }
    drop(pause);
    let newest = head.lock().unwrap().clone();
    let answers = all(requests).await;
    assert!(answers[1..].iter().all(|answer| answer.revision == newest));
    assert_eq!((git.calls("fetch"), git.calls("ls-tree")), (2, 2));
}
