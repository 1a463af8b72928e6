//! The page of `kubectl alustan ui`, with the client certificate of a user.

use std::fs;
use std::process::{Child, Command};

use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode};

use crate::cli;
use crate::server::{Server, spawn_guarded, until};

/// A process of `kubectl alustan ui`. Ends when this value is dropped.
pub(crate) struct Ui {
    /// URL of the page, without a path.
    pub(crate) address: String,
    /// URL that signs in.
    pub(crate) sign_in: String,
    /// Process of `leash.sh`.
    process: Child,
}

impl Ui {
    /// Starts the page of `user` for `namespace`.
    pub(crate) async fn start(server: &Server, user: &str, namespace: &str) -> Self {
        Self::start_program(Command::new(cli::program()), server, user, namespace).await
    }

    /// Starts the page with `program`, a build of `kubectl-alustan`.
    pub(crate) async fn start_program(
        mut program: Command,
        server: &Server,
        user: &str,
        namespace: &str,
    ) -> Self {
        let log = tempfile::NamedTempFile::new_in(server.folder())
            .unwrap()
            .into_temp_path()
            .keep()
            .unwrap();
        program
            .args(["ui", "-n", namespace])
            .env("KUBECONFIG", server.kubeconfig_file_signed(user));
        let process = spawn_guarded(&mut program, &log);
        let sign_in = until("the URL of the page", async || {
            let printed = fs::read_to_string(&log).unwrap();
            let url = printed.lines().find(|line| line.starts_with("http://"));
            url.map(str::to_owned).ok_or(printed)
        })
        .await;
        let path = sign_in.rfind("/open?").unwrap();
        Self {
            address: sign_in[..path].to_owned(),
            sign_in,
            process,
        }
    }

    /// Returns the URL of `path`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// Returns a client that is signed in.
    pub(crate) async fn visitor(&self) -> Visitor<'_> {
        let client = reqwest::Client::builder()
            .redirect(Policy::none())
            .build()
            .unwrap();
        let opened = client.get(&self.sign_in).send().await.unwrap();
        assert_eq!(opened.status(), StatusCode::SEE_OTHER);
        let cookie = opened.headers()[SET_COOKIE].to_str().unwrap();
        Visitor {
            ui: self,
            cookie: cookie.split(';').next().unwrap().to_owned(),
            client,
        }
    }

    /// Returns the memory of the process of the page.
    pub(crate) fn memory(&self) -> Memory {
        let leash = self.process.id();
        let children = fs::read_to_string(format!("/proc/{leash}/task/{leash}/children")).unwrap();
        let program = children.split_whitespace().next().expect("a program");
        let status = fs::read_to_string(format!("/proc/{program}/status")).unwrap();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.unwrap().trim_end_matches("kB").trim();
            kibibytes.parse::<usize>().unwrap() * 1024
        };
        Memory {
            resident: bytes("VmRSS:"),
            peak: bytes("VmHWM:"),
        }
    }
}

/// Memory of a process, in bytes.
pub(crate) struct Memory {
    pub(crate) resident: usize,
    pub(crate) peak: usize,
}

/// A client of the page without a browser.
pub(crate) struct Visitor<'a> {
    ui: &'a Ui,
    client: reqwest::Client,
    /// Name and value of the cookie of the session.
    pub(crate) cookie: String,
}

impl Visitor<'_> {
    /// Returns the URL of `path`.
    pub(crate) fn url(&self, path: &str) -> String {
        self.ui.url(path)
    }

    /// Builds a request of the session.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, self.ui.url(path))
            .header(COOKIE, &self.cookie)
    }

    /// Requests the page at `path`.
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    /// Returns status code and body of the page at `path`.
    pub(crate) async fn read(&self, path: &str) -> (StatusCode, String) {
        let response = self.get(path).await;
        (response.status(), response.text().await.unwrap())
    }

    /// Returns the path to which a response redirects.
    pub(crate) fn target(response: &Response) -> &str {
        response.headers()[LOCATION].to_str().unwrap()
    }
}
