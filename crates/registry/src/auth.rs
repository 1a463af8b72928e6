//! Authentication with registries: <https://distribution.github.io/distribution/spec/auth/token/>.

use std::time::Duration;

use http_auth::{ChallengeRef, parse_challenges};
use reqwest::{Client, RequestBuilder, Response, StatusCode, header::WWW_AUTHENTICATE};
use serde::Deserialize;

use crate::{
    credential::Credential,
    error::{Error, Failure, response::read_request, short},
    name::ImageName,
};

/// Lifetime of a token without `expires_in`: <https://distribution.github.io/distribution/spec/auth/token/#token-response-fields>.
const TOKEN_LIFE: Duration = Duration::from_mins(1);
/// Maximum lifetime of a [`Grant`], even if the token is valid for longer.
const MAX_GRANT_LIFE: Duration = Duration::from_mins(5);
/// Maximum size of a token response, in bytes. A token must fit into a header, for which servers accept 8 to 64 KiB.
const ANSWER: usize = 64 << 10;

/// Operation on a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Pull,
    Push,
    Delete,
}

/// `Authorization` header of requests.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Authorization {
    None,
    /// User and password.
    Basic(String, String),
    Bearer(String),
}

impl Authorization {
    /// Returns the size of user, password and token, in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Basic(user, password) => user.len() + password.len(),
            Self::Bearer(token) => token.len(),
        }
    }
}

/// Authorization for requests to a repository, and the time for which the client reuses the authorization.
pub(crate) struct Grant {
    pub(crate) authorization: Authorization,
    pub(crate) lifetime: Duration,
}

/// Inputs of the authentication for requests to one repository.
pub(crate) struct AuthRequest<'a> {
    pub(crate) http: &'a Client,
    /// URL of the registry: `https://host[:port]` or `http://…`.
    pub(crate) base: &'a str,
    pub(crate) name: &'a ImageName,
    pub(crate) operation: Operation,
    /// Repository of the same registry from which the client mounts blobs. The token must also permit pulls from this repository.
    pub(crate) source: Option<&'a ImageName>,
    pub(crate) credential: Option<&'a Credential>,
}

/// Authentication scheme in the `WWW-Authenticate` header of the registry.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Bearer {
        realm: String,
        service: Option<String>,
    },
    Basic,
    Unknown,
}

impl AuthRequest<'_> {
    /// Requests the authentication challenge of the registry, and a token if the challenge requires one.
    pub(crate) async fn authorize(&self) -> Result<Grant, Error> {
        if let Some(Credential::Bearer(token)) = self.credential {
            return Ok(Grant {
                authorization: Authorization::Bearer(token.clone()),
                lifetime: MAX_GRANT_LIFE,
            });
        }
        let response = self
            .send(self.http.get(format!("{}/v2/", self.base)))
            .await?;
        match response.status() {
            status if status.is_success() => Ok(Grant {
                authorization: self.basic_or_none(),
                lifetime: MAX_GRANT_LIFE,
            }),
            StatusCode::UNAUTHORIZED => self.answer_challenge(&challenge(&response)).await,
            StatusCode::NOT_FOUND => {
                Err(self.failed(Failure::Other, "the host has no registry API at `/v2/`"))
            }
            status => Err(self.failed(
                Failure::of_status(status.as_u16()),
                &format!("status {status}"),
            )),
        }
    }

    async fn answer_challenge(&self, challenge: &Challenge) -> Result<Grant, Error> {
        match (challenge, self.credential) {
            (Challenge::Bearer { realm, service }, _) => {
                self.token(realm, service.as_deref()).await
            }
            (Challenge::Basic, Some(Credential::Basic { .. })) => Ok(Grant {
                authorization: self.basic_or_none(),
                lifetime: MAX_GRANT_LIFE,
            }),
            (Challenge::Basic, Some(Credential::Identity(_) | Credential::Bearer(_))) => Err(self
                .failed(
                    Failure::Unauthorized,
                    "the registry accepts only user name and password, not a token",
                )),
            (Challenge::Basic, None) => Err(self.failed(
                Failure::Unauthorized,
                "the registry requires user name and password, but no credentials are set",
            )),
            (Challenge::Unknown, _) => Err(self.failed(
                Failure::Other,
                "the registry requires an authentication scheme other than Basic and Bearer",
            )),
        }
    }

    fn basic_or_none(&self) -> Authorization {
        match self.credential {
            Some(Credential::Basic { username, password }) => {
                Authorization::Basic(username.clone(), password.clone())
            }
            _ => Authorization::None,
        }
    }

    async fn token(&self, realm: &str, service: Option<&str>) -> Result<Grant, Error> {
        if self.base.starts_with("https://") && !realm.starts_with("https://") {
            return Err(self.failed(
                Failure::Other,
                "the registry uses https, but the URL of its token service uses plain http",
            ));
        }
        let response = self.send(self.token_request(realm, service)).await?;
        let status = response.status();
        let body = self.body(response).await?;
        if !status.is_success() {
            let failure = match status {
                // Some token services return 400 for invalid credentials and expired refresh tokens.
                StatusCode::BAD_REQUEST => Failure::Unauthorized,
                // Status 404 means that the token service is missing, not the image.
                StatusCode::NOT_FOUND => Failure::Other,
                status => Failure::of_status(status.as_u16()),
            };
            return Err(self.failed(failure, &format!("token service: status {status}")));
        }
        read_token(&body)
            .ok_or_else(|| self.failed(Failure::Other, "the token service returned no token"))
    }

    fn token_request(&self, realm: &str, service: Option<&str>) -> RequestBuilder {
        let actions = match self.operation {
            Operation::Pull => "pull",
            Operation::Push => "pull,push",
            Operation::Delete => "pull,delete",
        };
        let mut scopes = vec![format!("repository:{}:{actions}", self.name.repository())];
        let source = self.source.map(ImageName::repository);
        scopes.extend(source.map(|source| format!("repository:{source}:pull")));
        // OAuth 2 allows one field `scope` for all repositories; the older protocol requires one field per repository.
        let list = scopes.join(" ");
        let mut fields = match self.credential {
            Some(Credential::Identity(_)) => vec![("scope", list.as_str())],
            _ => scopes
                .iter()
                .map(|scope| ("scope", scope.as_str()))
                .collect(),
        };
        fields.extend(service.map(|service| ("service", service)));
        match self.credential {
            Some(Credential::Identity(token)) => {
                fields.extend([
                    ("grant_type", "refresh_token"),
                    ("refresh_token", token.as_str()),
                    ("client_id", "alustan"),
                ]);
                self.http.post(realm).form(&fields)
            }
            Some(Credential::Basic { username, password }) => self
                .http
                .get(realm)
                .query(&fields)
                .basic_auth(username, Some(password)),
            Some(Credential::Bearer(_)) | None => self.http.get(realm).query(&fields),
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        request
            .send()
            .await
            .map_err(|error| self.transport_error(&error))
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.transport_error(&error))?
        {
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER {
                return Err(self.failed(
                    Failure::Other,
                    "the response of the token service is too large",
                ));
            }
        }
        Ok(body)
    }

    fn transport_error(&self, error: &reqwest::Error) -> Error {
        let (failure, detail) = read_request(error);
        self.failed(failure, &detail)
    }

    fn failed(&self, failure: Failure, detail: &str) -> Error {
        Error::Request {
            action: "authenticate to",
            subject: self.name.to_string(),
            failure,
            detail: short(detail),
        }
    }
}

/// Returns the authentication challenge of a response. If the response has several challenges, `Bearer` is preferred to `Basic`.
fn challenge(response: &Response) -> Challenge {
    let challenges: Vec<Challenge> = response
        .headers()
        .get_all(WWW_AUTHENTICATE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(read_challenges)
        .collect();
    challenges
        .iter()
        .position(|challenge| matches!(challenge, Challenge::Bearer { .. }))
        .or_else(|| {
            challenges
                .iter()
                .position(|challenge| *challenge == Challenge::Basic)
        })
        .and_then(|at| challenges.into_iter().nth(at))
        .unwrap_or(Challenge::Unknown)
}

fn read_challenges(header: &str) -> Vec<Challenge> {
    parse_challenges(header)
        .unwrap_or_default()
        .iter()
        .map(read_challenge)
        .collect()
}

fn read_challenge(challenge: &ChallengeRef<'_>) -> Challenge {
    let field = |wanted: &str| {
        challenge
            .params
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.to_unescaped())
    };
    match (
        challenge.scheme.to_ascii_lowercase().as_str(),
        field("realm"),
    ) {
        ("bearer", Some(realm)) => Challenge::Bearer {
            realm,
            service: field("service"),
        },
        ("basic", _) => Challenge::Basic,
        _ => Challenge::Unknown,
    }
}

/// Token in the response of a token service: field `token` or `access_token`. Some services return both fields.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Lifetime in the response of a token service, in seconds.
#[derive(Deserialize)]
struct Life {
    expires_in: u64,
}

fn read_token(body: &[u8]) -> Option<Grant> {
    let Token {
        token,
        access_token,
    } = serde_json::from_slice(body).ok()?;
    let token = [token, access_token]
        .into_iter()
        .flatten()
        .find(|token| !token.is_empty())?;
    // Header values must consist of printable ASCII characters.
    if token.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return None;
    }
    // A token whose `expires_in` is missing or no integer is valid for the default lifetime.
    let life = serde_json::from_slice(body).map_or(TOKEN_LIFE, |life: Life| {
        Duration::from_secs(life.expires_in)
    });
    Some(Grant {
        authorization: Authorization::Bearer(token),
        lifetime: life.mul_f32(0.75).min(MAX_GRANT_LIFE),
    })
}

#[cfg(test)]
mod tests;
