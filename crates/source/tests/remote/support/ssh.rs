//! A real sshd on a free port.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use alustan_source::{Credentials, SecretBytes};
use tempfile::TempDir;

const SSHD: &str = "/usr/sbin/sshd";

pub(crate) struct SshServer {
    child: Child,
    folder: TempDir,
    port: u16,
    user: String,
}

impl SshServer {
    /// Starts sshd with one host key and one authorized key.
    pub(crate) fn start() -> Self {
        assert!(
            Path::new(SSHD).exists(),
            "{SSHD} is missing: `apt-get install openssh-server` (`make setup` does)"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        keygen(&path("host"), "");
        keygen(&path("client"), "");
        let public = std::fs::read(path("client.pub")).unwrap();
        std::fs::write(path("authorized"), public).unwrap();
        let port = free_port();
        let text = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n",
            path("host").display(),
            path("authorized").display(),
        );
        std::fs::write(path("config"), text).unwrap();
        if whoami() == "root" {
            // Privilege separation directory of sshd. On a host, the service of the sshd package creates the directory.
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        let child = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(path("config"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            child,
            folder,
            port,
            user: whoami(),
        };
        server.wait();
        server
    }

    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                Instant::now() < end,
                "sshd does not listen on port {}",
                self.port
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the ssh URL of `repository`, a local path.
    pub(crate) fn url(&self, repository: &Path) -> String {
        format!(
            "ssh://{}@127.0.0.1:{}{}",
            self.user,
            self.port,
            repository.display()
        )
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the authorized private key.
    pub(crate) fn key(&self) -> String {
        std::fs::read_to_string(self.path("client")).unwrap()
    }

    /// Returns the `known_hosts` entry of the server, as printed by `ssh-keyscan`.
    pub(crate) fn known_hosts(&self) -> String {
        self.known_hosts_with("host")
    }

    /// Returns a `known_hosts` entry of the server with the public key in the file `KEY.pub`.
    pub(crate) fn known_hosts_with(&self, key: &str) -> String {
        let public = std::fs::read_to_string(self.path(&format!("{key}.pub"))).unwrap();
        format!("[127.0.0.1]:{} {public}", self.port)
    }

    pub(crate) fn credentials(&self) -> Credentials {
        self.credentials_with(&self.key())
    }

    pub(crate) fn credentials_with(&self, key: &str) -> Credentials {
        Credentials {
            ssh_key: Some(SecretBytes::new(key)),
            known_hosts: Some(self.known_hosts()),
            ..Credentials::default()
        }
    }

    /// Creates a key pair in the files `NAME` and `NAME.pub`, and does not authorize it. Returns the private key.
    pub(crate) fn new_key(&self, name: &str, passphrase: &str) -> String {
        keygen(&self.path(name), passphrase);
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Creates a key pair with `ssh-keygen ARGUMENTS`, and authorizes it on the server. Returns the private key.
    pub(crate) fn new_guest(&self, name: &str, arguments: &[&str]) -> String {
        keygen_with(&self.path(name), arguments);
        let public = std::fs::read_to_string(self.path(&format!("{name}.pub"))).unwrap();
        let mut guests = std::fs::OpenOptions::new()
            .append(true)
            .open(self.path("authorized"))
            .unwrap();
        guests.write_all(public.as_bytes()).unwrap();
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn keygen(path: &Path, passphrase: &str) {
    keygen_with(path, &["-t", "ed25519", "-N", passphrase]);
}

fn keygen_with(path: &Path, arguments: &[&str]) {
    let output = Command::new("ssh-keygen")
        .args(["-q", "-C", "test"])
        .args(arguments)
        .arg("-f")
        .arg(path)
        .output()
        .expect("ssh-keygen must be installed");
    assert!(output.status.success());
}

fn whoami() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns a port that was free at the time of the check.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
