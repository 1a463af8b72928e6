//! Repositories and servers for tests.

mod http;
mod ssh;

use std::{path::Path, process::Command, sync::Arc};

use alustan_source::{
    Allows, CacheOptions, Context, ContextSpec, Credentials, Error, GitCache, Reference,
    RepositoryUrl, Revision, UnpackLimits, unpack,
};
use tempfile::TempDir;

pub(crate) use http::{HttpServer, Rules};
pub(crate) use ssh::SshServer;

/// A cache in a folder that is removed on drop.
pub(crate) struct TestCache {
    pub(crate) cache: GitCache,
    pub(crate) root: Arc<TempDir>,
}

impl TestCache {
    pub(crate) fn new() -> Self {
        Self::with(CacheOptions::default())
    }

    pub(crate) fn with(options: CacheOptions) -> Self {
        let root = tempfile::tempdir().unwrap();
        let cache = GitCache::with_options(root.path(), options).unwrap();
        Self {
            cache,
            root: Arc::new(root),
        }
    }

    pub(crate) async fn resolve(
        &self,
        url: &str,
        branch: Option<&str>,
        credentials: &Credentials,
    ) -> Result<Revision, Error> {
        let url = RepositoryUrl::parse(url)?;
        self.cache
            .resolve(&url, &Reference::branch(branch)?, credentials)
            .await
    }

    /// Returns the revision of `reference`, and the context of the root module at this revision.
    pub(crate) async fn context_at(
        &self,
        url: &str,
        reference: &Reference,
        credentials: &Credentials,
    ) -> Result<(Revision, Context), Error> {
        let address = RepositoryUrl::parse(url)?;
        let revision = self.cache.resolve(&address, reference, credentials).await?;
        let context = self.context_of(url, "", &revision, credentials).await?;
        Ok((revision, context))
    }

    /// Returns the context at the head of the default branch, with submodules.
    pub(crate) async fn with_submodules(
        &self,
        url: &str,
        path: &str,
        credentials: &Credentials,
    ) -> Result<Context, Error> {
        let allows = |_: &RepositoryUrl| true;
        self.with_allowed_submodules(url, path, credentials, &allows)
            .await
    }

    /// Returns the context at the head of the default branch, with submodules of allowed repositories.
    pub(crate) async fn with_allowed_submodules(
        &self,
        url: &str,
        path: &str,
        credentials: &Credentials,
        allows: Allows<'_>,
    ) -> Result<Context, Error> {
        let revision = self.resolve(url, None, credentials).await?;
        let spec = ContextSpec {
            path: Some(path.to_owned()),
            submodules: true,
            ..ContextSpec::default()
        };
        self.cache
            .fetch_context(
                &RepositoryUrl::parse(url)?,
                &revision,
                &spec,
                credentials,
                allows,
            )
            .await
    }

    /// Returns the context at the head of the default branch.
    pub(crate) async fn context(
        &self,
        url: &str,
        path: &str,
        credentials: &Credentials,
    ) -> Result<Context, Error> {
        let revision = self.resolve(url, None, credentials).await?;
        self.context_of(url, path, &revision, credentials).await
    }

    pub(crate) async fn context_of(
        &self,
        url: &str,
        path: &str,
        revision: &Revision,
        credentials: &Credentials,
    ) -> Result<Context, Error> {
        let spec = ContextSpec {
            path: Some(path.to_owned()),
            ..ContextSpec::default()
        };
        self.cache
            .fetch_context(
                &RepositoryUrl::parse(url)?,
                revision,
                &spec,
                credentials,
                &|_| true,
            )
            .await
    }
}

/// A bare repository `<folder>/r.git` that servers serve, and a work tree beside it.
pub(crate) struct Origin {
    pub(crate) folder: TempDir,
}

impl Origin {
    /// Creates a repository on branch `main` with `files` in its first commit.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let origin = Self::empty();
        origin.commit(files);
        origin
    }

    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let origin = Self { folder };
        origin.git(&[
            "init",
            "--quiet",
            "--bare",
            "--initial-branch=main",
            "r.git",
        ]);
        origin.git(&["clone", "--quiet", "r.git", "work"]);
        origin.git(&["-C", "work", "checkout", "--quiet", "-B", "main"]);
        origin
    }

    pub(crate) fn work(&self) -> std::path::PathBuf {
        self.folder.path().join("work")
    }

    /// Writes files, commits all files of the work tree and pushes. Returns the commit id.
    pub(crate) fn commit(&self, files: &[(&str, &str)]) -> String {
        for (path, text) in files {
            let path = self.work().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        self.git(&["-C", "work", "add", "--all"]);
        self.git(&[
            "-C",
            "work",
            "commit",
            "--quiet",
            "--allow-empty",
            "--message=c",
        ]);
        self.git(&["-C", "work", "push", "--quiet", "--force", "origin", "HEAD"]);
        self.git(&["-C", "work", "rev-parse", "HEAD"])
    }

    /// Runs git in `folder`. Returns its trimmed stdout.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(self.folder.path())
            .args(arguments)
            .env_clear();
        git.env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path());
        for (role, value) in [("AUTHOR", "a"), ("COMMITTER", "c")] {
            git.env(format!("GIT_{role}_NAME"), value)
                .env(format!("GIT_{role}_EMAIL"), "x@y");
        }
        let output = git.output().expect("git must be installed");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// Asserts the reason of `error`, whether `error` is transient, and that the text of `error` contains all `words`. Returns the text.
pub(crate) fn assert_failure(
    error: &Error,
    reason: &str,
    transient: bool,
    words: &[&str],
) -> String {
    let text = error.to_string();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        (reason, transient),
        "{text}"
    );
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    text
}

/// Returns the files of a context with their text.
pub(crate) fn files(context: &Context) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    unpack(
        std::fs::File::open(context.archive.as_ref().unwrap()).unwrap(),
        folder.path(),
        &UnpackLimits::default(),
    )
    .unwrap();
    let mut entries = Vec::new();
    walk(folder.path(), folder.path(), &mut entries);
    entries.sort();
    entries
}

fn walk(root: &Path, folder: &Path, entries: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            walk(root, &path, entries);
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            entries.push((name, std::fs::read_to_string(&path).unwrap_or_default()));
        }
    }
}

pub(crate) fn names(context: &Context) -> Vec<String> {
    files(context).into_iter().map(|(name, _)| name).collect()
}
