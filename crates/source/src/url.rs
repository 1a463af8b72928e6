//! URLs of git repositories.

use std::fmt;

use crate::{error::Error, repopath};

/// Hosts on which the path of a repository is always `owner/name`. The part of a URL path after `owner/name` is a folder in the repository.
const TWO_PART_HOSTS: [&str; 2] = ["github.com", "bitbucket.org"];

/// Transport of git.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// HTTP over TLS.
    Https,
    /// Plain HTTP, for hosts in the cluster.
    Http,
    /// ssh, written as `ssh://` or as `user@host:path`.
    Ssh,
}

impl Scheme {
    /// Returns the scheme as in the URL of a repository.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
        }
    }
}

/// URL of a repository, and optionally a folder in the repository. Contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepositoryUrl {
    scheme: Scheme,
    host: String,
    remote: String,
    subdir: Option<String>,
}

impl RepositoryUrl {
    /// Parses `https://…`, `http://…`, `ssh://[user@]host[:port]/path` and `user@host:path`.
    ///
    /// Each form may end in `//folder`. On github.com and bitbucket.org, the path after `owner/name` is also a folder. A user name in an
    /// HTTP URL is dropped, because git uses it only together with a password.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] with the reason and, if possible, the correct form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        read(text).map_err(|why| Error::InvalidUrl {
            url: without_userinfo(text),
            why,
        })
    }

    /// Returns the URL of the repository for git.
    pub fn remote(&self) -> &str {
        &self.remote
    }

    /// Returns the folder in the repository, without leading and trailing slashes.
    pub fn subdir(&self) -> Option<&str> {
        self.subdir.as_deref()
    }

    /// Returns the host name in lower case, without port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the transport.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Whether both URLs refer to the same repository on the same host. Ignores transport, port, `.git` and the case of the path, because
    /// hosts ignore the case of repository names.
    pub fn is_same_repository(&self, other: &Self) -> bool {
        self.repository_key() == other.repository_key()
    }

    /// Returns a text that two URLs have in common if they refer to the same repository ([`Self::is_same_repository`]).
    pub fn repository_key(&self) -> String {
        format!("{}/{}", self.host, self.path().to_ascii_lowercase())
    }

    /// Returns the path of the repository on its host, without leading and trailing slashes and without `.git`.
    pub fn path(&self) -> &str {
        let path = match self.remote.split_once("://") {
            Some((_, rest)) => rest.split_once('/'),
            None => self.remote.split_once(':'),
        };
        let path = path.map_or("", |(_, path)| path).trim_matches('/');
        path.strip_suffix(".git").unwrap_or(path)
    }

    /// Returns the URL of the repository without `.git`. URLs that differ only in the folder or in `.git` have the same key.
    pub fn cache_key(&self) -> &str {
        self.remote.strip_suffix(".git").unwrap_or(&self.remote)
    }
}

impl fmt::Display for RepositoryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.remote)?;
        self.subdir
            .as_deref()
            .map_or(Ok(()), |subdir| write!(f, "//{subdir}"))
    }
}

/// Parts of a URL. `path` is the path of the repository, and may continue with a folder in the repository.
struct Parts<'a> {
    scheme: Scheme,
    /// Part of the URL before `path`, with the host in lower case: `https://host:8443/`, `git@host:`.
    prefix: String,
    host: String,
    path: &'a str,
}

fn read(text: &str) -> Result<RepositoryUrl, String> {
    refuse_odd_text(text)?;
    let Parts {
        scheme,
        prefix,
        host,
        path,
    } = parts(text)?;
    let (repository, subdir) = split_path(&host, path)?;
    Ok(RepositoryUrl {
        scheme,
        remote: format!("{prefix}{repository}"),
        host,
        subdir,
    })
}

fn refuse_odd_text(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("the URL is empty".into());
    }
    if text.starts_with('-') {
        return Err("the URL starts with `-`".into());
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("the URL contains white space or control characters".into());
    }
    if text.contains(['?', '#']) {
        return Err(
            "the URL contains `?` or `#`; set a branch in `gitRepo.branch`, a tag in `gitRepo.tag`"
                .into(),
        );
    }
    Ok(())
}

fn parts(text: &str) -> Result<Parts<'_>, String> {
    match text.split_once("://") {
        Some(("https", rest)) => http_parts(Scheme::Https, rest),
        Some(("http", rest)) => http_parts(Scheme::Http, rest),
        Some(("ssh", rest)) => ssh_parts(rest),
        Some((other, _)) => Err(format!(
            "unsupported scheme `{other}`: use https, http or ssh"
        )),
        None => scp_parts(text),
    }
}

fn http_parts(scheme: Scheme, rest: &str) -> Result<Parts<'_>, String> {
    let (authority, path) = split_authority(rest)?;
    let (userinfo, address) = split_userinfo(authority);
    if userinfo.is_some_and(|user| user.contains(':')) {
        return Err(
            "the URL contains a password; move the password to the Secret of `gitRepo.credentialsSecret`".into(),
        );
    }
    let (host, port) = host_and_port(address)?;
    let prefix = format!("{}://{host}{port}/", scheme.as_str());
    Ok(Parts {
        scheme,
        prefix,
        host: bare_host(&host),
        path,
    })
}

fn ssh_parts(rest: &str) -> Result<Parts<'_>, String> {
    let (authority, path) = split_authority(rest)?;
    let (userinfo, address) = split_userinfo(authority);
    let user = userinfo.map(checked_user).transpose()?;
    let (host, port) = host_and_port(address)?;
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let prefix = format!("ssh://{user}{host}{port}/");
    Ok(Parts {
        scheme: Scheme::Ssh,
        prefix,
        host: bare_host(&host),
        path,
    })
}

fn scp_parts(text: &str) -> Result<Parts<'_>, String> {
    const FORMS: &str = "expected https://host/path, ssh://user@host/path or user@host:path";
    if text.contains("::") {
        return Err(format!("a prefix with `::` is not supported; {FORMS}"));
    }
    let (authority, path) = text.split_once(':').ok_or_else(|| FORMS.to_owned())?;
    let (user, address) = authority.split_once('@').ok_or_else(|| FORMS.to_owned())?;
    let user = checked_user(user)?;
    let (host, _) = host_and_port(address)?;
    // A leading slash marks an absolute path on the host and stays in the URL of the repository.
    let (slash, path) = path
        .strip_prefix('/')
        .map_or(("", path), |path| ("/", path));
    Ok(Parts {
        scheme: Scheme::Ssh,
        prefix: format!("{user}@{host}:{slash}"),
        host,
        path,
    })
}

fn split_authority(rest: &str) -> Result<(&str, &str), String> {
    rest.split_once('/')
        .ok_or_else(|| "the URL has no path after the host".into())
}

fn split_userinfo(authority: &str) -> (Option<&str>, &str) {
    authority
        .rsplit_once('@')
        .map_or((None, authority), |(user, host)| (Some(user), host))
}

fn checked_user(user: &str) -> Result<&str, String> {
    if user.contains(':') {
        return Err(
            "the URL contains a password; ssh uses the key of `gitRepo.sshKeySecret`".into(),
        );
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if user.is_empty() || user.starts_with('-') || !user.chars().all(plain) {
        return Err(format!("`{user}` is not a user name"));
    }
    Ok(user)
}

/// Returns the host in lower case (an IPv6 address with brackets), and the port with a leading colon; `""` if there is no port.
fn host_and_port(address: &str) -> Result<(String, String), String> {
    let bracketed = address
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'));
    let (host, port) = if let Some((inner, rest)) = bracketed {
        (ipv6(inner)?, rest)
    } else {
        let (name, port) = address.split_at(address.find(':').unwrap_or(address.len()));
        (dns_name(name)?, port)
    };
    if port.is_empty() {
        return Ok((host, String::new()));
    }
    let number = port
        .strip_prefix(':')
        .and_then(|port| port.parse::<u16>().ok())
        .ok_or_else(|| format!("`{port}` is not a port"))?;
    Ok((host, format!(":{number}")))
}

fn ipv6(inner: &str) -> Result<String, String> {
    let address: std::net::Ipv6Addr = inner
        .parse()
        .map_err(|_| format!("`{inner}` is not an IPv6 address"))?;
    Ok(format!("[{address}]"))
}

fn dns_name(host: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if host.is_empty() || host.starts_with(['-', '.']) || !host.chars().all(plain) {
        return Err(format!("`{host}` is not a host name"));
    }
    Ok(host.to_ascii_lowercase())
}

fn bare_host(host: &str) -> String {
    host.trim_matches(['[', ']']).to_owned()
}

/// Splits the path of a URL into the path of the repository and the folder in the repository.
fn split_path(host: &str, path: &str) -> Result<(String, Option<String>), String> {
    let (repository, folder) = path
        .split_once("//")
        .map_or((path, ""), |(path, rest)| (path, rest));
    let repository = repository.trim_matches('/');
    let (repository, implied) = split_owner(host, repository)?;
    if repository.is_empty() {
        return Err("the URL has no repository path".into());
    }
    if repository.starts_with('-') {
        return Err("the repository path starts with `-`".into());
    }
    if repository
        .split('/')
        .any(|part| part == ".." || part == ".")
    {
        return Err("the path contains `.` or `..`".into());
    }
    let folder = repopath::normalise(&format!("{implied}/{folder}"))
        .map_err(|why| format!("the folder {why}"))?;
    Ok((
        repository.to_owned(),
        Some(folder).filter(|folder| !folder.is_empty()),
    ))
}

/// Splits `path` into `owner/name` and the folder after the name, if `host` is one of [`TWO_PART_HOSTS`]. Returns the whole `path` and an empty
/// folder for other hosts.
fn split_owner<'a>(host: &str, path: &'a str) -> Result<(&'a str, &'a str), String> {
    if !TWO_PART_HOSTS.contains(&host) {
        return Ok((path, ""));
    }
    let Some((owner, rest)) = path.split_once('/') else {
        return Err(format!(
            "on {host}, the path of a repository is `owner/name`"
        ));
    };
    let (name, folder) = rest.split_once('/').unwrap_or((rest, ""));
    if host == "github.com"
        && folder
            .split('/')
            .next()
            .is_some_and(|word| word == "tree" || word == "blob")
    {
        return Err(
            "the URL is a web page; set the URL of the repository, and the folder in `gitRepo.path`"
                .into(),
        );
    }
    let end = owner.len() + 1 + name.len();
    Ok((path.get(..end).unwrap_or(path), folder))
}

/// Returns a URL for error messages. If the URL has a scheme, user name and password are removed.
fn without_userinfo(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests;
