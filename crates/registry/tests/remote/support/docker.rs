//! A real registry: the program `docker-registry` on a free port.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

pub(crate) const USER: &str = "me";
pub(crate) const PASSWORD: &str = "hunter2";
/// Line of an htpasswd file: [`USER`] and the bcrypt hash of [`PASSWORD`].
const HTPASSWD: &str = "me:$2b$05$abcdefghijklmnopqrstuuoXuKqgZXLiJqzfmMXDDhSFPIvxV7t8.\n";

/// Settings of the registry under test.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setting {
    pub(crate) htpasswd: bool,
    pub(crate) tls: bool,
    /// Whether the registry permits clients to delete manifests.
    pub(crate) delete: bool,
}

pub(crate) struct DockerRegistry {
    child: Child,
    folder: TempDir,
    port: u16,
    /// PEM certificate, if the registry uses TLS.
    pub(crate) ca: Option<String>,
}

impl DockerRegistry {
    pub(crate) fn start(setting: Setting) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut text = vec![format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n  delete:\n    enabled: {}\n",
            path("data"),
            setting.delete,
        )];
        if setting.htpasswd {
            fs::write(path("htpasswd"), HTPASSWD).unwrap();
            text.push(format!(
                "auth:\n  htpasswd:\n    realm: test\n    path: {}\n",
                path("htpasswd")
            ));
        }
        text.push(format!("http:\n  addr: 127.0.0.1:{port}\n"));
        let ca = setting.tls.then(|| {
            let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).unwrap();
            fs::write(path("cert"), made.cert.pem()).unwrap();
            fs::write(path("key"), made.signing_key.serialize_pem()).unwrap();
            text.push(format!(
                "  tls:\n    certificate: {}\n    key: {}\n",
                path("cert"),
                path("key")
            ));
            made.cert.pem()
        });
        fs::write(path("config.yml"), text.concat()).unwrap();
        let log = fs::File::create(path("log")).unwrap();
        let child = Command::new("docker-registry")
            .args(["serve", &path("config.yml")])
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("`docker-registry` is missing: `apt-get install docker-registry` (`make setup` does)");
        let registry = Self {
            child,
            folder,
            port,
            ca,
        };
        registry.wait();
        registry
    }

    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                Instant::now() < end,
                "docker-registry does not listen on port {}",
                self.port
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns `127.0.0.1:port`.
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the number of requests with `method` so far.
    pub(crate) fn requests(&self, method: &str) -> usize {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        log.matches(&format!("\"{method} ")).count()
    }

    /// Returns the path of the file in which the registry stores a blob.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let digits = digest.strip_prefix("sha256:").unwrap();
        let blobs = self
            .folder
            .path()
            .join("data/docker/registry/v2/blobs/sha256");
        blobs
            .join(digits.get(..2).unwrap())
            .join(digits)
            .join("data")
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port that was free at the time of the check.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
