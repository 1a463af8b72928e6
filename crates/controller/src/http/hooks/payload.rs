//! Parses push events of git servers. Without I/O.

use alustan_source::{Reference, RepositoryUrl};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Maximum size of a repository URL and of the name of a reference, in bytes.
const MAX_BYTES: usize = 2048;

/// Type of git server that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// GitHub and compatible servers: Gitea, Forgejo.
    Github,
    /// GitLab.
    Gitlab,
    /// All other clients.
    Generic,
}

impl Sender {
    /// Returns the path of the endpoint.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Github => "/hooks/github",
            Self::Gitlab => "/hooks/gitlab",
            Self::Generic => "/hooks/generic",
        }
    }
}

/// A push to a repository.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Push {
    /// URLs of the repository: for HTTPS and for SSH, if the message has both.
    pub(crate) repositories: Vec<RepositoryUrl>,
    /// Reference that moved (`refs/heads/main`, or only the name of a branch or tag). `None`: any reference.
    pub(crate) reference: Option<String>,
    /// Name of the default branch of the repository, if the message has it.
    pub(crate) default: Option<String>,
}

impl Push {
    /// Returns whether the push affects resources that use `reference` of `repository`.
    pub(crate) fn affects(&self, repository: &RepositoryUrl, reference: &Reference) -> bool {
        self.repositories
            .iter()
            .any(|known| known.is_same_repository(repository))
            && self.moves(reference)
    }

    fn moves(&self, reference: &Reference) -> bool {
        let moved = self.reference.as_deref();
        let is = |prefix: &str, name: &str| {
            moved.is_none_or(|moved| moved == name || moved.strip_prefix(prefix) == Some(name))
        };
        match reference {
            Reference::Branch(name) => is("refs/heads/", name.as_str()),
            Reference::Tag(name) => is("refs/tags/", name.as_str()),
            Reference::Default => match &self.default {
                Some(default) => is("refs/heads/", default),
                None => moved.is_none_or(|moved| {
                    moved.starts_with("refs/heads/") || !moved.starts_with("refs/")
                }),
            },
            Reference::Commit(_) => false,
        }
    }
}

/// Push event of GitHub (<https://docs.github.com/webhooks/webhook-events-and-payloads#push>).
#[derive(Deserialize)]
struct GithubPush {
    #[serde(rename = "ref")]
    reference: String,
    repository: GithubRepository,
}

#[derive(Deserialize)]
struct GithubRepository {
    clone_url: Option<String>,
    ssh_url: Option<String>,
    default_branch: Option<String>,
}

/// Push event of GitLab (<https://docs.gitlab.com/user/project/integrations/webhook_events/#push-events>).
#[derive(Deserialize)]
struct GitlabPush {
    #[serde(rename = "ref")]
    reference: String,
    project: GitlabProject,
}

#[derive(Deserialize)]
struct GitlabProject {
    git_http_url: Option<String>,
    git_ssh_url: Option<String>,
    default_branch: Option<String>,
}

/// Push event of other clients, in the format of this operator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GenericPush {
    repository: String,
    #[serde(rename = "ref")]
    reference: Option<String>,
}

/// Parses the push in `body`. Skips unused fields, so that their content takes no memory.
///
/// # Errors
/// The cause, for the administrator of the sender.
pub(crate) fn parse(sender: Sender, body: &[u8]) -> Result<Push, String> {
    let (addresses, reference, default) = match sender {
        Sender::Github => {
            let push: GithubPush = parse_json(body, "a GitHub push event")?;
            let GithubRepository {
                clone_url,
                ssh_url,
                default_branch,
            } = push.repository;
            ([clone_url, ssh_url], Some(push.reference), default_branch)
        }
        Sender::Gitlab => {
            let push: GitlabPush = parse_json(body, "a GitLab push event")?;
            let GitlabProject {
                git_http_url,
                git_ssh_url,
                default_branch,
            } = push.project;
            (
                [git_http_url, git_ssh_url],
                Some(push.reference),
                default_branch,
            )
        }
        Sender::Generic => {
            let push: GenericPush = parse_json(
                body,
                r#"of the form {"repository": "https://…", "ref": "refs/heads/main"}"#,
            )?;
            ([Some(push.repository), None], push.reference, None)
        }
    };
    let repositories: Vec<RepositoryUrl> = addresses
        .iter()
        .flatten()
        .filter(|address| address.len() <= MAX_BYTES)
        .filter_map(|address| RepositoryUrl::parse(address).ok())
        .collect();
    if repositories.is_empty() {
        return Err("the push contains no repository URL with scheme https or ssh".to_owned());
    }
    let is_too_long =
        |name: &Option<String>| name.as_ref().is_some_and(|name| name.len() > MAX_BYTES);
    if is_too_long(&reference) || is_too_long(&default) {
        return Err(format!("ref or default_branch exceeds {MAX_BYTES} bytes"));
    }
    Ok(Push {
        repositories,
        reference,
        default,
    })
}

fn parse_json<T: DeserializeOwned>(body: &[u8], expected: &str) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| {
        if error.is_data() {
            format!("the body is not {expected}: {error}")
        } else {
            format!("the body is not valid JSON: {error}")
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn push(sender: Sender, body: &Value) -> Push {
        parse(sender, body.to_string().as_bytes()).unwrap()
    }

    fn github(reference: &str) -> Push {
        push(
            Sender::Github,
            &json!({
                "ref": reference, "before": "0", "commits": [],
                "repository": {
                    "clone_url": "https://github.com/Team/infra.git",
                    "ssh_url": "git@github.com:Team/infra.git", "default_branch": "main",
                },
            }),
        )
    }

    fn repository(url: &str) -> RepositoryUrl {
        RepositoryUrl::parse(url).unwrap()
    }

    #[test]
    fn push_matches_all_url_forms_of_a_repository() {
        let push = github("refs/heads/main");
        let main = Reference::branch(Some("main")).unwrap();
        for url in [
            "https://github.com/team/infra",
            "git@github.com:Team/infra.git",
            "ssh://git@github.com/team/infra.git",
            "github.com/team/infra"
                .replacen("github", "https://github", 1)
                .as_str(),
            "https://github.com/team/infra/modules/web",
        ] {
            assert!(push.affects(&repository(url), &main), "{url}");
        }
        for url in [
            "https://github.com/team/infra2",
            "https://gitlab.com/team/infra",
            "git@github.com:other/infra.git",
        ] {
            assert!(!push.affects(&repository(url), &main), "{url}");
        }
    }

    #[test]
    fn push_affects_only_resources_of_its_reference() {
        let here = repository("https://github.com/team/infra");
        let branch = |name| Reference::branch(Some(name)).unwrap();
        let tag = Reference::tag("v1").unwrap();
        let commit = Reference::commit(&"a".repeat(40)).unwrap();
        let affected = |push: &Push| {
            [
                &Reference::Default,
                &branch("main"),
                &branch("next"),
                &tag,
                &commit,
            ]
            .map(|reference| push.affects(&here, reference))
        };
        assert_eq!(
            affected(&github("refs/heads/main")),
            [true, true, false, false, false]
        );
        assert_eq!(
            affected(&github("refs/heads/next")),
            [false, false, true, false, false]
        );
        assert_eq!(
            affected(&github("refs/tags/v1")),
            [false, false, false, true, false]
        );
        let any = push(
            Sender::Generic,
            &json!({"repository": "https://github.com/team/infra"}),
        );
        assert_eq!(affected(&any), [true, true, true, true, false]);
        let unnamed = Push {
            reference: Some("refs/heads/next".to_owned()),
            ..any
        };
        assert_eq!(affected(&unnamed), [true, false, true, false, false]);
    }

    #[test]
    fn gitlab_push_names_its_repository_in_project() {
        let push = push(
            Sender::Gitlab,
            &json!({
                "object_kind": "push", "ref": "refs/heads/main",
                "project": {
                    "git_ssh_url": "ssh://git@gitlab.test:2222/a/b/c.git",
                    "git_http_url": "https://gitlab.test:8443/a/b/c.git", "default_branch": "main",
                },
            }),
        );
        let here = repository("ssh://git@gitlab.test:2222/a/b/c");
        assert!(push.affects(&here, &Reference::Default));
    }

    #[test]
    fn fields_of_a_push_that_are_not_read_are_skipped() {
        let many = r#"{"":0},"#.repeat(15_000);
        // `serde_json` limits nesting to 128 levels, but not in fields that it skips.
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        let other = format!("[{many}{deep}]");
        for (sender, object, url) in [
            (Sender::Github, "repository", "clone_url"),
            (Sender::Gitlab, "project", "git_http_url"),
        ] {
            let fields = format!(r#""x":{other},"{url}":"https://a.test/b""#);
            let body = format!(r#"{{"x":{other},"ref":"main","{object}":{{{fields}}}}}"#);
            let push = parse(sender, body.as_bytes()).unwrap();
            assert_eq!(push.repositories, [repository("https://a.test/b")]);
            assert_eq!(push.reference.as_deref(), Some("main"));
        }
        let generic = format!(r#"{{"repository":"https://a.test/b","x":{other}}}"#);
        let error = parse(Sender::Generic, generic.as_bytes()).unwrap_err();
        assert!(error.contains("unknown field `x`"), "{error}");
    }

    #[test]
    fn invalid_push_is_refused_with_the_cause() {
        let named = |bytes: usize| {
            let url = "https://a.test/b/";
            let url = format!("{url}{}", "c".repeat(bytes - url.len()));
            json!({"repository": url}).to_string()
        };
        let moved = |bytes: usize| {
            json!({"repository": "https://a.test/b", "ref": "r".repeat(bytes)}).to_string()
        };
        for (body, message) in [
            ("", "not valid JSON"),
            ("[]", "not of the form"),
            (r#"{"repository": 1}"#, "not of the form"),
            (
                r#"{"repository": "https://a.test/b", "branch": "x"}"#,
                "branch",
            ),
            (r#"{"repository": "file:///etc"}"#, "no repository URL"),
            (&named(MAX_BYTES + 1), "no repository URL"),
            (&moved(MAX_BYTES + 1), "exceeds 2048 bytes"),
        ] {
            let error = parse(Sender::Generic, body.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        for longest in [named(MAX_BYTES), moved(MAX_BYTES)] {
            let longest = parse(Sender::Generic, longest.as_bytes());
            assert_eq!(longest.map(|push| push.repositories.len()), Ok(1));
        }
        let branch = json!({"ref": "main", "repository": {
            "clone_url": "https://a.test/b", "default_branch": "b".repeat(MAX_BYTES + 1),
        }});
        let error = parse(Sender::Github, branch.to_string().as_bytes()).unwrap_err();
        assert!(error.contains("default_branch exceeds"), "{error}");
        assert!(parse(Sender::Github, br#"{"zen": "x"}"#).is_err());
    }
}
