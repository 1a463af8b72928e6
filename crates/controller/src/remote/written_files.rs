//! Files of modules that are part of the resource: `spec.source.inline`, and the root module for `spec.source.module`.

use std::collections::BTreeMap;
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_api::{Terraform, revision};
use alustan_core::digest as hash;
use alustan_core::observed::SourceSeen;
use alustan_source::{Context, ContextSpec, SourceFiles, TempPath, pack_files};
use kube::ResourceExt;

use crate::remote::context_store::ContextStore;
use crate::remote::failure::at_digest;
use crate::remote::packing::{revision_moved, run_blocking};
use crate::remote::queries::{requested, store_and_describe};

/// Files that are part of a resource.
#[derive(Clone)]
pub(crate) struct WrittenFiles {
    /// Field of the source.
    field: &'static str,
    files: Arc<SourceFiles>,
    spec: ContextSpec,
    /// Digest of the files, in hexadecimal digits.
    digest: String,
    pub(crate) tenant: String,
}

impl WrittenFiles {
    /// Returns `files` as the files of the module of `tf`. `field`: field of the source.
    pub(crate) fn new(tf: &Terraform, field: &'static str, files: SourceFiles) -> Self {
        let texts: BTreeMap<_, _> = files
            .iter()
            .map(|(name, file)| (name, String::from_utf8_lossy(&file.content)))
            .collect();
        let digest = hash::plain(&texts);
        Self {
            field,
            files: Arc::new(files),
            spec: ContextSpec {
                // The whole source.
                include: vec![String::new()],
                var_files: tf.spec.var_files.clone(),
                wrapper: tf.spec.wrapper(),
                ..ContextSpec::default()
            },
            digest,
            tenant: tf.namespace().unwrap_or_default(),
        }
    }

    /// Returns the revision of the files.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    pub(crate) fn revision_query(&self) -> String {
        format!("revision of files {}", self.digest)
    }

    pub(crate) fn module_identity(&self) -> String {
        format!(
            "files {} of {} {:?} {:?}",
            self.digest, self.field, self.spec.var_files, self.spec.wrapper
        )
    }

    /// Packs the files and stores the context for the push.
    pub(crate) async fn seen(&self, contexts: &ContextStore) -> Result<SourceSeen, Failure> {
        let context = self.packed(contexts).await?;
        let revision = revision::of_digest(&self.digest);
        store_and_describe(revision, context, contexts)
    }

    /// Packs the files again.
    ///
    /// # Errors
    /// If the context is not that of `seen`.
    pub(crate) async fn fetch_again(
        &self,
        seen: &SourceSeen,
        contexts: &ContextStore,
    ) -> Result<(TempPath, u64), Failure> {
        requested(self.packed(contexts).await?, seen).ok_or_else(revision_moved)
    }

    async fn packed(&self, contexts: &ContextStore) -> Result<Context, Failure> {
        let (source, folder) = (self.clone(), contexts.folder().to_owned());
        run_blocking(move || {
            let Self {
                field,
                files,
                spec,
                digest,
                ..
            } = &source;
            pack_files(files, spec, &folder).map_err(|error| at_digest(field, digest, &error))
        })
        .await
    }
}
