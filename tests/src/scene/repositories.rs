//! Git repositories of the test, and its images in the registry.

use std::path::Path;

use crate::{Cluster, Counter, Scene, node};

impl Scene {
    /// Commits `files` to the test's repository `name`. Returns the id of the commit.
    pub async fn commit(&self, name: &str, files: &[(&str, &str)]) -> String {
        let repository = format!("{}/{name}", self.namespace);
        self.commit_with(&repository, |folder| write(folder, files))
            .await
    }

    /// Commits the files that `write` writes into a folder to `repository` (owner and name). Returns the id of the commit.
    pub async fn commit_with(&self, repository: &str, write: impl FnOnce(&Path)) -> String {
        let commit = self.cluster.commit(repository, write).await;
        self.report_push(repository).await;
        commit
    }

    /// Commits a module with one counted object to the repository `name`. Returns its counter.
    pub async fn commit_counted_object(&self, name: &str) -> Counter {
        let counter = Counter::start().await;
        self.commit(name, &[("main.tf", &counter.counted_object("a"))])
            .await;
        counter
    }

    /// Runs git in the bare repository `name` of the test. Returns its output.
    pub async fn git(&self, name: &str, arguments: &[&str]) -> String {
        let folder = self
            .cluster
            .folder
            .join("git")
            .join(&self.namespace)
            .join(format!("{name}.git"));
        let git = [
            "-c",
            "safe.directory=*",
            "-c",
            "user.name=e2e",
            "-c",
            "user.email=e2e@alustan.test",
            "-C",
        ];
        let folder = folder.to_str().expect("a path");
        let arguments = [&git[..], &[folder], arguments].concat();
        let output = self.cluster.run("git", &arguments).await;
        self.report_push(&format!("{}/{name}", self.namespace))
            .await;
        output.trim().to_owned()
    }

    /// Returns the https URL of the repository `name` of the test.
    pub fn https(&self, name: &str) -> String {
        format!("https://git.alustan.test/{}/{name}", self.namespace)
    }

    /// Returns the text of a file of the dev cluster's ssh server: `id_ed25519`, `known_hosts`, …
    pub fn ssh_file(&self, name: &str) -> String {
        let file = self.cluster.folder.join("ssh").join(name);
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Returns the certificate authority of the dev cluster's servers.
    pub fn authority(&self) -> String {
        std::fs::read_to_string(self.cluster.folder.join("ca.crt")).expect("the authority")
    }

    /// Removes all repositories of the test.
    pub fn remove_repositories(&self) {
        for owner in [
            self.namespace.clone(),
            format!("private/{}", self.namespace),
        ] {
            // Ignores an error: most tests have only one of the folders.
            let _ = std::fs::remove_dir_all(self.cluster.folder.join("git").join(owner));
        }
    }
}

impl Cluster {
    /// Commits the files that `write` writes into a folder to `repository` (owner and name). Returns the id of the commit.
    pub(crate) async fn commit(&self, repository: &str, write: impl FnOnce(&Path)) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path());
        let path = folder.path().to_str().expect("a path");
        let commit = self.run("hack/git/new-repo", &[repository, path]).await;
        commit.trim().to_owned()
    }
}

/// Writes `files` (path and text) into `folder`.
pub(crate) fn write(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let file = folder.join(path);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        std::fs::write(file, text).expect("a file");
    }
}

/// Returns the URL of the dev cluster's registry, as reached by the host.
fn registry() -> String {
    format!("http://{}", node(5000))
}

impl Scene {
    /// Pushes an image that no node can unpack, under a tag of the test's image `name`.
    pub async fn spoil(&self, name: &str, tag: &str) {
        let upload = format!("{}/v2/{}/{name}", registry(), self.namespace);
        let blob = "this is no archive";
        let digest = self.put_blob(&upload, blob).await;
        let (size, kind) = (blob.len(), "application/vnd.oci.image");
        let text = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [&digest]},
        })
        .to_string();
        let config = self.put_blob(&upload, &text).await;
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": format!("{kind}.manifest.v1+json"),
            "config": {"mediaType": format!("{kind}.config.v1+json"), "digest": config, "size": text.len()},
            "layers": [{"mediaType": format!("{kind}.layer.v1.tar+gzip"), "digest": digest, "size": size}],
        });
        let kind = format!("Content-Type: {kind}.manifest.v1+json");
        let (url, manifest) = (format!("{upload}/manifests/{tag}"), manifest.to_string());
        self.curl(&["-X", "PUT", "-H", &kind, "--data-binary", &manifest, &url])
            .await;
    }

    /// Deletes the test's image `name` from the registry and from the node, as after garbage collection of the registry and a
    /// replacement of the node.
    pub async fn lose_image(&self, name: &str, digest: &str) {
        let url = format!(
            "{}/v2/{}/{name}/manifests/{digest}",
            registry(),
            self.namespace
        );
        self.curl(&["-X", "DELETE", &url]).await;
        let socket = self.cluster.folder.join("containerd/containerd.sock");
        let image = format!(
            "registry.alustan.test:5000/{}/{name}@{digest}",
            self.namespace
        );
        let arguments = [
            "-a",
            socket.to_str().expect("a path"),
            "-n",
            "k8s.io",
            "images",
            "rm",
            "--sync",
            &image,
        ];
        self.cluster.run("ctr", &arguments).await;
    }

    /// Returns whether the registry has the test's image `name` at `reference`, a tag or a digest.
    pub async fn has_image(&self, name: &str, reference: &str) -> bool {
        let url = format!(
            "{}/v2/{}/{name}/manifests/{reference}",
            registry(),
            self.namespace
        );
        let accept = "Accept: application/vnd.oci.image.manifest.v1+json";
        let code = [
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            accept,
            &url,
        ];
        self.cluster.run("curl", &code).await == "200"
    }

    /// Sets the creation time of the test's image `name:tag` to `year`. Returns the digest of its context.
    pub async fn age_image(&self, name: &str, tag: &str, year: u16) -> String {
        let upload = format!("{}/v2/{}/{name}", registry(), self.namespace);
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let url = format!("{upload}/manifests/{tag}");
        let accept = format!("Accept: {kind}");
        let manifest = self.curl(&["-H", &accept, &url]).await;
        let mut manifest: serde_json::Value = serde_json::from_str(&manifest).expect("a manifest");
        let config = manifest["config"]["digest"].as_str().expect("a digest");
        let config = self
            .curl(&["-L", &format!("{upload}/blobs/{config}")])
            .await;
        let mut config: serde_json::Value = serde_json::from_str(&config).expect("a configuration");
        config["created"] = format!("{year}-01-01T00:00:00Z").into();
        let text = config.to_string();
        manifest["config"]["digest"] = self.put_blob(&upload, &text).await.into();
        manifest["config"]["size"] = text.len().into();
        let (kind, text) = (format!("Content-Type: {kind}"), manifest.to_string());
        self.curl(&["-X", "PUT", "-H", &kind, "--data-binary", &text, &url])
            .await;
        let context = config["config"]["Labels"]["io.alustan.context"].as_str();
        let (_, digest) = context
            .and_then(|context| context.split_once('@'))
            .expect("a context");
        digest.to_owned()
    }

    /// Returns the content of the layers that the build of the test's image `name` added (less than 1 MiB each), as text.
    pub async fn image_text(&self, name: &str, digest: &str) -> String {
        let url = format!("{}/v2/{}/{name}", registry(), self.namespace);
        let kinds = "Accept: application/vnd.oci.image.manifest.v1+json, \
                     application/vnd.docker.distribution.manifest.v2+json";
        let manifest = self
            .curl(&["-H", kinds, &format!("{url}/manifests/{digest}")])
            .await;
        let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("a manifest");
        let layers = manifest["layers"].as_array().expect("layers");
        let own = layers
            .iter()
            .filter(|layer| layer["size"].as_u64().is_some_and(|size| size < 1 << 20));
        let mut text = String::new();
        for layer in own {
            let digest = layer["digest"].as_str().expect("a digest");
            let unpack = "curl -sS --fail -L \"$1\" | gzip -dc | tr -d '\\000'";
            let blob = format!("{url}/blobs/{digest}");
            text.push_str(&self.cluster.run("sh", &["-c", unpack, "sh", &blob]).await);
        }
        text
    }

    /// Pushes an artifact with `files` to the test's repository `name`, as `flux push artifact` does. Returns the digest of its manifest.
    pub async fn push_artifact(&self, name: &str, tag: &str, files: &[(&str, String)]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let texts: Vec<_> = files
            .iter()
            .map(|(path, text)| (*path, text.as_str()))
            .collect();
        write(&folder.path().join("files"), &texts);
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (files, layer) = (path("files"), path("layer"));
        self.cluster
            .run("tar", &["-C", &files, "-czf", &layer, "."])
            .await;
        let upload = format!("{}/v2/{}/{name}", registry(), self.namespace);
        let size = std::fs::metadata(&layer).expect("a layer").len();
        let digest = self.put_file(&upload, &layer).await;
        let (config, flux) = (
            self.put_blob(&upload, "{}").await,
            "application/vnd.cncf.flux",
        );
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": format!("{flux}.config.v1+json"), "digest": config, "size": 2},
            "layers": [{"mediaType": format!("{flux}.content.v1.tar+gzip"), "digest": digest, "size": size}],
        });
        let manifest = manifest.to_string();
        let (_, sum) = self.cluster.output("sha256sum", &[], Some(&manifest)).await;
        let kind = "Content-Type: application/vnd.oci.image.manifest.v1+json";
        let url = format!("{upload}/manifests/{tag}");
        self.curl(&["-X", "PUT", "-H", kind, "--data-binary", &manifest, &url])
            .await;
        format!("sha256:{}", sum.split_whitespace().next().expect("a sum"))
    }

    async fn put_blob(&self, upload: &str, text: &str) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("write a file");
        self.put_file(upload, file.path().to_str().expect("a path"))
            .await
    }

    async fn put_file(&self, upload: &str, file: &str) -> String {
        let sum = self.cluster.run("sha256sum", &[file]).await;
        let digest = format!("sha256:{}", sum.split_whitespace().next().expect("a sum"));
        let uploads = format!("{upload}/blobs/uploads/");
        let place = self
            .curl(&[
                "-X",
                "POST",
                "-o",
                "/dev/null",
                "-w",
                "%header{location}",
                &uploads,
            ])
            .await;
        let host = registry();
        let place = if place.starts_with('/') {
            format!("{host}{place}")
        } else {
            place
        };
        let sep = if place.contains('?') { '&' } else { '?' };
        let url = format!("{place}{sep}digest={digest}");
        let kind = "Content-Type: application/octet-stream";
        let content = format!("@{file}");
        self.curl(&["-X", "PUT", "-H", kind, "--data-binary", &content, &url])
            .await;
        digest
    }

    async fn curl(&self, arguments: &[&str]) -> String {
        let mut all = vec!["-sS", "--fail"];
        all.extend(arguments);
        self.cluster.run("curl", &all).await
    }
}
