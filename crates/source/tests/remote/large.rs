//! Large repositories.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{ChildStdin, Command, Stdio},
};

use alustan_source::{CacheOptions, Credentials};

use crate::support::{HttpServer, Origin, Rules, SshServer, TestCache, assert_failure, names};

fn bytes_in(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !metadata.is_dir() {
        return metadata.len();
    }
    fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| bytes_in(&entry.path()))
        .sum()
}

/// Returns incompressible bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fs::File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut noise)
        .unwrap();
    noise
}

/// Commits the output of `write` to the branch `main` with `git fast-import`, without a work tree.
fn import(origin: &Origin, write: impl FnOnce(&mut ChildStdin)) {
    // The content is incompressible, so compression is off.
    for setting in [["core.compression", "0"], ["core.bigFileThreshold", "1m"]] {
        origin.git(&[&["-C", "r.git", "config"], &setting[..]].concat());
    }
    let mut import = Command::new("git")
        .arg("-C")
        .arg(origin.folder.path().join("r.git"))
        .args(["fast-import", "--quiet", "--force", "--depth=0"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = import.stdin.take().unwrap();
    writeln!(
        pipe,
        "commit refs/heads/main\ncommitter c <x@y> 0 +0000\ndata 0"
    )
    .unwrap();
    write(&mut pipe);
    drop(pipe);
    assert!(import.wait().unwrap().success());
}

/// Commits `count` files of `megabytes` MiB each, and a module.
fn fill(origin: &Origin, count: u64, megabytes: usize) {
    import(origin, |pipe| {
        for number in 0..count {
            let bytes = noise(megabytes << 20);
            writeln!(pipe, "M 644 inline big/{number}\ndata {}", bytes.len()).unwrap();
            pipe.write_all(&bytes).unwrap();
            writeln!(pipe).unwrap();
        }
        writeln!(pipe, "M 644 inline module/main.tf\ndata 4\n# 1\n").unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn large_repository_is_fetched_once_and_evicted() {
    fetched_once_within_bounds(2).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes two gigabytes: make full runs it"]
async fn repository_of_500_mib_is_fetched_once_and_evicted() {
    fetched_once_within_bounds(10).await;
}

/// Asserts that a repository with fifty files of `megabytes` MiB each is fetched once over ssh, stays within its size limit on disk, and is
/// evicted when another repository needs the space.
async fn fetched_once_within_bounds(megabytes: usize) {
    let (server, origin) = (SshServer::start(), Origin::empty());
    let size = (megabytes as u64) << 20;
    fill(&origin, 50, megabytes);
    let url = server.url(&origin.folder.path().join("r.git"));
    let cache = TestCache::with(CacheOptions {
        cache_bytes: 60 * size,
        ..CacheOptions::default()
    });
    let credentials = server.credentials();
    let context = cache.context(&url, "module", &credentials).await.unwrap();
    assert_eq!(names(&context), ["module/main.tf"]);
    let used = bytes_in(cache.root.path());
    assert!((50 * size..52 * size).contains(&used), "{used}");

    // A fetch of a commit that changes only the module adds less than 1 MiB.
    import(&origin, |pipe| {
        writeln!(
            pipe,
            "from refs/heads/main^0\nM 644 inline module/main.tf\ndata 4\n# 2\n"
        )
        .unwrap();
    });
    let next = cache.context(&url, "module", &credentials).await.unwrap();
    assert_ne!(context.digest, next.digest);
    let again = bytes_in(cache.root.path());
    assert!(again < used + (1 << 20), "{used} became {again}");

    // A fetch of another repository evicts the first repository.
    let other = Origin::empty();
    fill(&other, 15, megabytes);
    let small = HttpServer::plain(other.folder.path(), Rules::default()).await;
    let none = Credentials::default();
    cache.context(&small.url(), "module", &none).await.unwrap();
    let after = bytes_in(cache.root.path());
    assert!(after < 20 * size, "the large one left: {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repository_larger_than_the_cache_leaves_no_files() {
    let origin = Origin::empty();
    fill(&origin, 4, 2);
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let cache = TestCache::with(CacheOptions {
        cache_bytes: 4 << 20,
        ..CacheOptions::default()
    });
    let none = Credentials::default();
    let error = cache
        .context(&server.url(), "module", &none)
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        ("RepositoryTooLarge", false),
        "{error}"
    );
    assert!(bytes_in(cache.root.path()) < 1 << 20);
}

/// Commits a module and two files of `megabytes` MiB that differ in one byte. The server stores the second file as a delta.
fn differing(origin: &Origin, megabytes: usize) {
    let bytes = noise(megabytes << 20);
    import(origin, |pipe| {
        for (name, more) in [("one", ""), ("other", "x")] {
            let length = bytes.len() + more.len();
            write!(pipe, "M 644 inline big/{name}\ndata {length}\n{more}").unwrap();
            pipe.write_all(&bytes).unwrap();
            writeln!(pipe).unwrap();
        }
        writeln!(pipe, "M 644 inline module/main.tf\ndata 4\n# 1\n").unwrap();
    });
    origin.git(&["-C", "r.git", "config", "core.bigFileThreshold", "2g"]);
    origin.git(&["-C", "r.git", "repack", "-adfq", "--window=2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_git_is_bounded_and_large_files_are_fetched() {
    let origin = Origin::empty();
    import(&origin, |pipe| {
        let zeros = vec![0; 150 << 20];
        writeln!(pipe, "M 644 inline zeros\ndata {}", zeros.len()).unwrap();
        pipe.write_all(&zeros).unwrap();
        writeln!(pipe, "\nM 644 inline module/main.tf\ndata 4\n# 1\n").unwrap();
    });
    origin.git(&["-C", "r.git", "config", "core.compression", "1"]);
    origin.git(&["-C", "r.git", "repack", "-adFq"]);
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let none = Credentials::default();
    let cache = TestCache::new();
    let context = cache.context(&server.url(), "module", &none).await;
    assert_eq!(names(&context.unwrap()), ["module/main.tf"]);

    // The fetch exceeds the memory limit of a small fetch and is repeated as a large fetch.
    let origin = Origin::empty();
    differing(&origin, 40);
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let cache = TestCache::new();
    let context = cache.context(&server.url(), "module", &none).await;
    assert_eq!(names(&context.unwrap()), ["module/main.tf"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "compares files of 200 MiB: make full runs it"]
async fn repository_that_needs_too_much_memory_is_refused() {
    let origin = Origin::empty();
    differing(&origin, 200);
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let none = Credentials::default();
    let error = TestCache::new()
        .context(&server.url(), "module", &none)
        .await
        .unwrap_err();
    let words = ["a file exceeds the memory limit of git"];
    assert_failure(&error, "RepositoryTooLarge", false, &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_module_is_read_concurrently_with_a_small_one() {
    let origin = Origin::empty();
    fill(&origin, 3, 2);
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let none = Credentials::default();
    let cache = TestCache::new();
    let url = server.url();
    let (large, small) = tokio::join!(
        cache.context(&url, "big", &none),
        cache.context(&url, "module", &none)
    );
    assert_eq!(names(&large.unwrap()), ["big/0", "big/1", "big/2"]);
    assert_eq!(names(&small.unwrap()), ["module/main.tf"]);
}

/// Value `name` of this process in `/proc/self/status`, in KiB.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap().trim_start_matches(':').trim();
    value.trim_end_matches(" kB").parse().unwrap()
}

/// Prints how much memory this process needs to pack a context of 62 MiB, in KiB.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures the memory of its process: `large_context_is_packed_in_little_memory` runs it"]
async fn measure_memory_of_a_large_context() {
    let origin = Origin::empty();
    fill(&origin, 31, 2);
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let (cache, none) = (TestCache::new(), Credentials::default());
    // Fetches the commit.
    cache.context(&server.url(), "module", &none).await.unwrap();
    // Resets the peak: <https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html>.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS");
    let context = cache.context(&server.url(), "big", &none).await.unwrap();
    assert_eq!(context.uncompressed, 62 << 20);
    println!("needed {} KiB", memory("VmHWM").saturating_sub(before));
}

#[test]
fn large_context_is_packed_in_little_memory() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "large::measure_memory_of_a_large_context",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let needed = text
        .lines()
        .find_map(|line| line.split_once("needed ")?.1.strip_suffix(" KiB"))
        .unwrap_or_else(|| panic!("{text}"));
    let needed: u64 = needed.parse().unwrap();
    assert!(needed < 16 << 10, "{needed} KiB");
}
