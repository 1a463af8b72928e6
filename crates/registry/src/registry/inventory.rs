//! Lists the tags and images of a repository, and deletes manifests, for pruning.

use std::collections::BTreeSet;

use reqwest::{Method, header};
use serde::Deserialize;

use super::{
    authenticated_call::Call,
    requests::{MANIFEST, MANIFESTS},
    session::Session,
    tags::{TAGS, TagList},
};
use crate::{
    error::{Error, Failure},
    prune::{RunnerImage, TaggedImage, is_cache_tag, is_context_tag, is_image_tag, read_config},
    reference::Digest,
};

/// Number of tags to request per page of the tag list.
const PAGE: usize = 500;

impl Call<'_> {
    /// Returns the tags of the repository with their images, except tags of contexts and of layers in a kaniko cache.
    pub(super) async fn inventory(&self) -> Result<Vec<TaggedImage>, Error> {
        let session = self.authenticate(None).await?;
        let mut images = Vec::new();
        let tags = self.tags(&session).await?;
        for tag in tags
            .into_iter()
            .filter(|tag| !is_cache_tag(tag) && !is_context_tag(tag))
        {
            images.extend(self.tagged_image(&session, tag).await?);
        }
        Ok(images)
    }

    /// Returns all tags. Stops after a page without a new tag, because registries without pagination return the complete list for each page.
    pub(super) async fn tags(&self, session: &Session) -> Result<BTreeSet<String>, Error> {
        let mut tags = BTreeSet::new();
        let mut last: Option<String> = None;
        loop {
            let mut request = session
                .request(Method::GET, "tags/list")
                .query(&[("n", PAGE)]);
            if let Some(last) = &last {
                request = request.query(&[("last", last)]);
            }
            let answer = match self.send(request).await {
                Err(error) if error.is_not_found() => return Ok(tags),
                other => other?,
            };
            let TagList { tags: page } =
                serde_json::from_slice(&answer.body).map_err(|error| self.invalid_tags(&error))?;
            let page = page.unwrap_or_default();
            let more = answer.headers.contains_key(header::LINK) || page.size >= PAGE;
            let before = tags.len();
            last = page.valid.last().cloned();
            tags.extend(page.valid);
            if page.size > TAGS || tags.len() > TAGS {
                let detail = format!("the registry lists more than {TAGS} tags");
                return Err(self.refused(Failure::Other, detail));
            }
            if !more || tags.len() == before {
                return Ok(tags);
            }
        }
    }

    /// Returns the error for an invalid list of tags. An invalid list is refused: if a tag is missing in the list, pruning may delete an
    /// image that has the tag and must be kept. The message omits the text of the response, which may come from another host after a
    /// redirect.
    fn invalid_tags(&self, error: &serde_json::Error) -> Error {
        let (line, column) = (error.line(), error.column());
        let detail = format!("the list of tags is invalid (line {line}, column {column})");
        self.refused(Failure::Other, detail)
    }

    /// Returns digest and metadata of the image with `tag`; `None` if the tag was deleted concurrently.
    async fn tagged_image(
        &self,
        session: &Session,
        tag: String,
    ) -> Result<Option<TaggedImage>, Error> {
        let request = session
            .request(Method::GET, &format!("manifests/{tag}"))
            .header(header::ACCEPT, MANIFESTS.join(", "));
        let answer = match self.send_bounded(request, MANIFEST).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let digest = Digest::of(&answer.body);
        let runner_image = if is_image_tag(&tag) {
            self.runner_image(session, &answer.body).await?
        } else {
            None
        };
        Ok(Some(TaggedImage {
            tag,
            digest,
            runner_image,
        }))
    }

    async fn runner_image(
        &self,
        session: &Session,
        manifest: &[u8],
    ) -> Result<Option<RunnerImage>, Error> {
        let Some(config) = config_digest(manifest) else {
            return Ok(None);
        };
        let request = session.request(Method::GET, &format!("blobs/{config}"));
        match self.send(request).await {
            Err(error) if error.is_not_found() => Ok(None),
            other => Ok(read_config(&other?.body)),
        }
    }

    pub(super) async fn delete(&self, digest: &Digest) -> Result<(), Error> {
        let session = self.authenticate(None).await?;
        let request = session.request(Method::DELETE, &format!("manifests/{digest}"));
        match self.open(request).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Fields of an image manifest that pruning reads.
#[derive(Deserialize)]
struct ImageManifest {
    config: ConfigDescriptor,
}

#[derive(Deserialize)]
struct ConfigDescriptor {
    digest: String,
}

/// Returns the digest of the config in a manifest; `None` if the manifest is not that of an image.
fn config_digest(manifest: &[u8]) -> Option<Digest> {
    let manifest: ImageManifest = serde_json::from_slice(manifest).ok()?;
    Digest::parse(&manifest.config.digest).ok()
}
