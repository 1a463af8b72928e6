//! Executes the [`Step`]s of a reconcile. Each step is idempotent. Updates of the run record require the observed resource version, so that
//! concurrent reconciles do not start the same run twice.

pub(crate) mod build_secrets;
pub(crate) mod context_push;
pub(crate) mod decision;
mod delete;
mod deletions;
mod finalizer;
mod namespaces;
mod objects;
pub(crate) mod pruning;
mod restore;
mod run_history;
pub(crate) mod step_executor;
pub(crate) mod unused_record;

use std::borrow::Cow;
use std::collections::BTreeMap;

use alustan_api::labels::{self, Component};
use alustan_api::run::{PROTOCOL, RunProgress, key};
use alustan_api::{FINALIZER, KEPT, Terraform};
use alustan_core::metric_definitions;
use alustan_core::model::orphans;
use alustan_core::objects::secrets;
use alustan_core::step::{Keep, Object, OutputsObject, Step, Swap};
use futures::future::try_join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::api::{Api, PartialObjectMeta, PartialObjectMetaExt, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use ring::rand::{SecureRandom, SystemRandom};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::apply::namespaces::LABEL_TTL;
use crate::apply::step_executor::StepExecutor;
use crate::apply::step_executor::encoded;
use crate::call::StatusKind;
use crate::call::call;
use crate::call::has_status;
use crate::context::Context;
use crate::error::Error;
use crate::fail_point::Moment;
use crate::observe::check_is_latest;
use crate::observe::observer::Observation;
use crate::reconciliation::Reconciliation;
use crate::remote::prune_request::PruningSeen;
use crate::resource::{has_component, is_made_for};
use crate::signing::Data;
use crate::step_name;
use crate::watch::mapping::is_mirrored;

/// Field manager that applies the finalizer and the annotation `alustan.io/uid` ([`KEPT`]). It owns no other field, so the apply changes no other
/// field.
const FINALIZER_MANAGER: &str = "terraform.alustan.io/finalizer";

/// Maximum size, in bytes, of an unsaved state that the operator keeps when it frees space in a full run report. Runners write unsaved states of at
/// most 700 KiB.
const MAX_UNSAVED_STATE_BYTES: usize = 768 << 10;

impl<'a> StepExecutor<'a> {
    /// Creates the executor of one reconcile, which acts on `observation`.
    pub(crate) fn new(
        reconciliation: &'a Reconciliation<'a>,
        observation: &'a Observation,
    ) -> Self {
        let record = observation.seen.record.as_ref();
        let version = record.map(|record| record.version.clone());
        let report_version = record.and_then(|record| record.report_version.clone());
        Self {
            ctx: reconciliation.ctx,
            tf: reconciliation.tf,
            resource: reconciliation.resource,
            observation,
            version,
            report_version,
            record: record.map(Cow::Borrowed),
        }
    }

    /// Executes `steps` in order. Applies the objects of adjacent [`Step::Ensure`] steps concurrently.
    ///
    /// # Errors
    /// The error of the first failed step. Later steps are not executed.
    pub(crate) async fn enact(&mut self, steps: &[Step]) -> Result<(), Error> {
        let mut rest = steps;
        while let Some((step, after)) = rest.split_first() {
            let objects: Vec<&Object> = rest
                .iter()
                .map_while(|step| {
                    if let Step::Ensure(object) = step {
                        Some(&**object)
                    } else {
                        None
                    }
                })
                .collect();
            if objects.is_empty() {
                self.ctx.fail_point.reached(Moment::Before, step);
                self.step(step).await?;
                self.ctx.fail_point.reached(Moment::After, step);
                rest = after;
            } else {
                // Apply RoleBindings and the namespace label last. The API server refuses a RoleBinding to a Role that does not exist yet. The label
                // must be set after the pin is written, because a concurrent `clean_up` removes the label of a namespace without pins.
                let (last, first): (Vec<&Object>, Vec<&Object>) =
                    objects.iter().partition(|object| {
                        matches!(object, Object::Binding(_) | Object::Namespace(_))
                    });
                try_join_all(first.into_iter().map(|object| self.ensure(object))).await?;
                try_join_all(last.into_iter().map(|object| self.ensure(object))).await?;
                rest = rest.get(objects.len()..).unwrap_or_default();
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), Error> {
        debug!(step = step_name::name(step), "executing a step");
        match step {
            Step::AddFinalizer => self.add_finalizer().await,
            Step::RemoveFinalizer => finalizer::remove(&self.ctx.client, self.tf).await,
            Step::CreateRecord(secret) => self.create_record(secret).await,
            Step::TakeOver(takeover) => self.take_over(takeover).await,
            Step::CheckRecord(_) if self.wrote_record() => Ok(()),
            Step::SwapRecord(swap) | Step::CheckRecord(swap) => self.swap(swap).await,
            Step::SwapReport(progress) => self.swap_report(progress).await,
            Step::Ensure(object) => self.ensure(object).await,
            Step::PushContext => {
                if let Some(push) = &self.observation.image.push {
                    context_push::start(self.ctx, self.resource, push);
                }
                Ok(())
            }
            Step::PruneImages => {
                if let Some(PruningSeen::Due(request)) = &self.observation.image.pruning {
                    pruning::start(self.ctx, self.tf, self.resource, request);
                }
                Ok(())
            }
            Step::CreateJob(job) => self.create_job(job).await,
            Step::DeleteJob {
                namespace,
                name,
                uid,
            } => delete::delete_job(self.ctx, namespace, name, uid).await,
            Step::CreateBuildSecret(secret) => build_secrets::create(self.ctx, secret).await,
            Step::DeleteBuildSecret(build_secret) => {
                build_secrets::delete(self.ctx, build_secret).await
            }
            Step::DeleteOutputs(OutputsObject::Secret(name)) => {
                self.ctx.mirrors.secrets.forget(&self.namespace(), name);
                self.delete_outputs::<Secret>(name).await
            }
            Step::DeleteOutputs(OutputsObject::ConfigMap(name)) => {
                self.ctx.mirrors.config_maps.forget(&self.namespace(), name);
                self.delete_outputs::<ConfigMap>(name).await
            }
            Step::RecordRun(run) => run_history::record(self.ctx, run).await,
            Step::DeleteRun(name) => run_history::delete(self.ctx, &self.namespace(), name).await,
            Step::DeleteClaim => self.delete_claim().await,
            Step::EmptyCache(job) => self.create_empty_cache_job(job).await,
            Step::ReleaseClaim(claim) => self.delete_finished_users(claim).await,
            Step::CleanUp { kept } => self.clean_up(kept).await,
        }
    }

    fn uid(&self) -> String {
        self.tf.uid().unwrap_or_default()
    }

    fn namespace(&self) -> String {
        self.tf.namespace().unwrap_or_default()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.ctx.client.clone(), &self.namespace())
    }

    /// Adds the finalizer. The patch contains the uid, so that it does not create a deleted resource again.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the resource is being deleted: the observed resource is outdated, and no run record must be created.
    async fn add_finalizer(&self) -> Result<(), Error> {
        let body = json!({
            "apiVersion": Terraform::api_version(&()), "kind": Terraform::kind(&()),
            "metadata": {
                "name": self.tf.name_any(), "uid": self.tf.uid(),
                "finalizers": [FINALIZER], "annotations": {KEPT: self.tf.uid()},
            },
        });
        let parameters = PatchParams::apply(FINALIZER_MANAGER).force();
        let api = self.api::<Terraform>();
        let patch = Patch::Apply(&body);
        let patched = call(
            "add the finalizer",
            api.patch(&self.tf.name_any(), &parameters, &patch),
        )
        .await?;
        if patched.metadata.deletion_timestamp.is_some() {
            return Err(Error::Conflict);
        }
        Ok(())
    }

    /// Creates the run record, or keeps the one that an earlier reconcile created.
    ///
    /// # Errors
    /// [`Error::Conflict`] or [`Error::Gone`] if the resource has the finalizer and is outdated. [`Self::add_finalizer`] checks a resource without it.
    /// [`Error::RunRecordConflict`] if the existing Secret belongs to another owner. [`Error::Conflict`] if the existing Secret is the run record of
    /// an earlier resource of the same name, or was deleted between the create and the read.
    async fn create_record(&mut self, secret: &Secret) -> Result<(), Error> {
        if self.tf.finalizers().iter().any(|name| name == FINALIZER) {
            check_is_latest(self.ctx, self.tf).await?;
        }
        let mut random_key = [0_u8; 32];
        SystemRandom::new()
            .fill(&mut random_key)
            .map_err(|_| Error::RandomSourceUnavailable)?;
        let mut secret = secret.clone();
        let data = secret.data.get_or_insert_default();
        data.insert(key::KEY.to_owned(), ByteString(random_key.to_vec()));
        self.ctx.signer.sign(&self.uid(), data);
        let api = self.api::<Secret>();
        match call(
            "create the run record",
            api.create(&PostParams::default(), &secret),
        )
        .await
        {
            Ok(created) => {
                self.version.clone_from(&created.metadata.resource_version);
                self.ctx.memory.add_created_record(created.uid());
                self.ctx.mirrors.secrets.record_write(created);
                Ok(())
            }
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::AlreadyExists) => {
                let name = secret.name_any();
                let existing = call("read the run record", api.get_opt(&name)).await?;
                match existing {
                    // The Secret is the run record of an earlier resource with the same name. Return a conflict, so that the next reconcile observes
                    // this Secret.
                    Some(existing)
                        if orphans::is_left_behind(
                            self.tf,
                            existing.labels(),
                            Component::Record,
                        ) =>
                    {
                        self.ctx.mirrors.secrets.record_write(existing);
                        Err(Error::Conflict)
                    }
                    Some(existing) if !is_made_for(self.tf, &existing) => {
                        Err(Error::RunRecordConflict(name))
                    }
                    Some(existing) => {
                        self.version.clone_from(&existing.metadata.resource_version);
                        self.ctx.mirrors.secrets.record_write(existing);
                        Ok(())
                    }
                    None => Err(Error::Conflict),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether this process wrote the observed version of the run record. Then [`Step::CheckRecord`] needs no request: only the leader
    /// writes run records, and a process that has lost the Lease exits. If another client has written the record since, the next
    /// [`Step::SwapRecord`] fails.
    fn wrote_record(&self) -> bool {
        let last_written = self.ctx.memory.record_version(self.resource);
        last_written.is_some() && last_written == self.version
    }

    /// Writes the run record with a merge patch that requires the observed resource version.
    async fn swap(&mut self, swap: &Swap) -> Result<(), Error> {
        let mut written = Data::from([(key::RECORD.to_owned(), encoded(&swap.record))]);
        if let Some(history) = &swap.history {
            written.insert(key::HISTORY.to_owned(), encoded(history));
        }
        if let Keep::Set(inputs) = &swap.inputs {
            written.insert(key::INPUTS.to_owned(), encoded(inputs));
        }
        let mut removed = Vec::new();
        if matches!(swap.inputs, Keep::Drop) {
            removed.extend([key::INPUTS.to_owned(), key::signature(key::INPUTS)]);
        }
        if !matches!(swap.inputs, Keep::Same) {
            // Remove the entries that runners of earlier operator versions wrote to the run record.
            removed.extend([key::REPORT, key::OUTPUTS].map(str::to_owned));
            if self.report_version.is_some() {
                removed.push(key::LEFTOVER.to_owned());
            }
        }
        let metadata = json!({"resourceVersion": self.version});
        self.patch_record("update the run record", &metadata, written, removed)
            .await?;
        self.record_metrics(swap);
        Ok(())
    }

    /// Patches the run record: signs and writes the entries `written`, and deletes the entries `removed`. `metadata` has the resource
    /// version that the patch requires.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the run record has another resource version or does not exist.
    async fn patch_record(
        &mut self,
        operation: &str,
        metadata: &Value,
        mut written: Data,
        removed: Vec<String>,
    ) -> Result<(), Error> {
        let name = alustan_api::names::record(&self.tf.name_any());
        self.ctx.signer.sign(&self.uid(), &mut written);
        let removed = removed.into_iter().map(|entry| (entry, None));
        let data: BTreeMap<_, _> = written
            .into_iter()
            .map(|(entry, content)| (entry, Some(content)))
            .chain(removed)
            .collect();
        let body = json!({"metadata": metadata, "data": data});
        let api = self.api::<Secret>();
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&body);
        match call(operation, api.patch(&name, &parameters, &patch)).await {
            Ok(written) => {
                self.version.clone_from(&written.metadata.resource_version);
                let memory = &self.ctx.memory;
                memory.set_record_version(self.resource, self.version.clone());
                self.ctx.mirrors.secrets.record_write(written);
                Ok(())
            }
            Err(Error::Call { source, .. })
                if has_status(&source, StatusKind::Conflict)
                    || has_status(&source, StatusKind::NotFound) =>
            {
                self.reload_secret("read the run record", &name).await;
                Err(Error::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads Secret `name` from the API server after a conflict, because the watch cache may be stale, for example after an outage of the
    /// API server. The next reconcile then observes the current version and does not repeat the failed write.
    async fn reload_secret(&self, operation: &str, name: &str) {
        self.ctx.mirrors.secrets.forget(&self.namespace(), name);
        if let Ok(Some(current)) = call(operation, self.api::<Secret>().get_opt(name)).await {
            self.ctx.mirrors.secrets.record_write(current);
        }
    }

    /// Writes `progress` to the run report, and removes the result and the outputs of the previous run from it. Requires that the report has the
    /// observed resource version. Creates the report if none was observed.
    async fn swap_report(&mut self, progress: &RunProgress) -> Result<(), Error> {
        const OPERATION: &str = "update the run report";
        let name = alustan_api::names::report(&self.tf.name_any());
        let api = self.api::<Secret>();
        let written = if let Some(version) = &self.report_version {
            let data = json!({
                key::PROGRESS: encoded(progress), key::REPORT: null, key::OUTPUTS: null,
                key::DETAILS: null,
            });
            let body = json!({"metadata": {"resourceVersion": version}, "data": data});
            let patch = Patch::Merge(&body);
            call(OPERATION, api.patch(&name, &PatchParams::default(), &patch)).await
        } else {
            let mut secret = secrets::report(self.tf, progress);
            let data = secret.data.get_or_insert_default();
            data.extend(self.unsaved_state_in_record());
            call(OPERATION, api.create(&PostParams::default(), &secret)).await
        };
        match written {
            Ok(written) => {
                self.report_version
                    .clone_from(&written.metadata.resource_version);
                self.ctx.mirrors.secrets.record_write(written);
                Ok(())
            }
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::AlreadyExists) => {
                self.get_own_metadata(&api, &name).await?;
                self.reload_secret("read the run report", &name).await;
                Err(Error::Conflict)
            }
            Err(Error::Call { source, .. })
                if has_status(&source, StatusKind::Conflict)
                    || has_status(&source, StatusKind::NotFound) =>
            {
                self.reload_secret("read the run report", &name).await;
                Err(Error::Conflict)
            }
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::Invalid) => {
                self.remove_foreign_entries(&api, &name).await?;
                Err(Error::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    /// Frees space in a run report that a module has filled up to the maximum size of a Secret. Keeps only the entries for which
    /// [`is_kept_when_full`] returns true.
    async fn remove_foreign_entries(&self, api: &Api<Secret>, name: &str) -> Result<(), Error> {
        let report = call("read the run report", api.get_opt(name)).await?;
        let Some(report) = report.filter(|report| is_made_for(self.tf, report)) else {
            return Ok(());
        };
        let version = report.resource_version();
        let removed: BTreeMap<String, Option<ByteString>> = report
            .data
            .unwrap_or_default()
            .into_iter()
            .filter(|(entry, content)| !is_kept_when_full(entry, content.0.len()))
            .map(|(entry, _)| (entry, None))
            .collect();
        let body = json!({"metadata": {"resourceVersion": version}, "data": removed});
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&body);
        let written = api.patch(name, &parameters, &patch);
        let written = call("free space in the run report", written).await?;
        self.ctx.mirrors.secrets.record_write(written);
        Ok(())
    }

    /// Returns the unsaved state that a runner of an earlier operator version wrote to the run record. The operator copies it to a new run report.
    fn unsaved_state_in_record(&self) -> BTreeMap<String, ByteString> {
        let name = alustan_api::names::record(&self.tf.name_any());
        let record = self.ctx.mirrors.known_secret(&self.namespace(), &name);
        let data = record
            .and_then(|record| record.data.clone())
            .unwrap_or_default();
        data.into_iter()
            .filter(|(name, _)| name == key::LEFTOVER)
            .collect()
    }

    /// Records in the metrics the run and the build that ended with `swap`, an update of the run record. Called only after this reconcile has
    /// written `swap`, so that each run and build is counted once.
    fn record_metrics(&mut self, swap: &Swap) {
        let Some(observed) = self.record.as_mut().map(Cow::to_mut) else {
            return;
        };
        let report = observed.report.as_ref();
        let ended = metric_definitions::ended(&observed.record, &observed.history, report, swap);
        self.ctx.metrics.record_end(&ended);
        observed.record.clone_from(&swap.record);
        if let Some(history) = &swap.history {
            observed.history.clone_from(history);
        }
    }

    async fn ensure(&self, object: &Object) -> Result<(), Error> {
        self.ctx.fail_point.reached_object(Moment::Before, object);
        self.write(object).await?;
        self.ctx.fail_point.reached_object(Moment::After, object);
        Ok(())
    }

    async fn write(&self, object: &Object) -> Result<(), Error> {
        match object {
            Object::Secret(secret) if is_mirrored(secret) => self.apply_secret(secret).await,
            Object::Secret(secret) => self.apply_run_object(secret).await,
            Object::ConfigMap(map) => {
                let mirror = &self.ctx.mirrors.config_maps;
                let known = self.known_state(mirror, &map.name_any());
                if let Some(written) = self.apply(map, known).await?.written() {
                    mirror.record_write(written.metadata.into_response_partial());
                }
                Ok(())
            }
            Object::Claim(claim) => self.create_claim(claim).await,
            Object::Account(account) => self.apply_run_object(account).await,
            Object::Role(role) => self.apply_run_object(role).await,
            Object::Binding(binding) => self.apply_run_object(binding).await,
            Object::Budget(budget) => self.apply_run_object(budget).await,
            Object::Namespace(namespace) => self.label_namespace(&namespace.name_any()).await,
        }
    }

    /// Sets label `alustan.io/holds-state` of `namespace`, unless this process has set it within [`LABEL_TTL`].
    async fn label_namespace(&self, namespace: &str) -> Result<(), Error> {
        let Context { client, memory, .. } = self.ctx;
        let uid = &self.observation.seen.namespace_uid;
        if memory.is_labelled(namespace, uid, LABEL_TTL) {
            return Ok(());
        }
        namespaces::add_label(client, namespace).await?;
        // Empty until the API server has returned the uid.
        if !uid.is_empty() {
            memory.set_labelled(namespace, uid.clone());
        }
        Ok(())
    }

    /// Applies a Secret of the watch cache.
    async fn apply_secret(&self, secret: &Secret) -> Result<(), Error> {
        if has_component(secret, Component::Pin) {
            return self.replace_pin(secret.clone()).await;
        }
        let is_outputs = has_component(secret, Component::Outputs);
        let mirror = &self.ctx.mirrors.secrets;
        let known = self.known_state(mirror, &secret.name_any());
        match self.apply(secret, known).await {
            Ok(applied) => {
                if let Some(written) = applied.written() {
                    mirror.record_write(written);
                }
                Ok(())
            }
            // A Secret of another owner has the name of the outputs Secret. The next reconcile observes that Secret and ends the run with a failure.
            Err(Error::NameTaken { .. }) if is_outputs => {
                let memory = &self.ctx.memory;
                memory.set_outputs_taken(self.resource, true);
                Err(Error::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    /// Signs and applies the pin, if the stored pin has the observed version: an outdated reconcile must neither replace the pin of a later run,
    /// nor create a pin after the clean-up.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the pin has another version or no longer exists, or exists although none was observed.
    async fn replace_pin(&self, mut pin: Secret) -> Result<(), Error> {
        let data = pin.data.get_or_insert_default();
        self.ctx.signer.sign(&self.uid(), data);
        let observed = self.observation.seen.pin_version.as_ref();
        let Some(written) = self.apply_at(&pin, observed).await? else {
            self.reload_secret("read the pin", &pin.name_any()).await;
            return Err(Error::Conflict);
        };
        self.ctx.mirrors.secrets.record_write(written);
        Ok(())
    }

    /// Reads the metadata of an object. Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// [`Error::NameTaken`] if the object belongs to another owner.
    async fn get_own_metadata<K>(
        &self,
        api: &Api<K>,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<K>>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let kind = K::kind(&()).into_owned();
        let metadata = call(&format!("read {kind} {name}"), api.get_metadata_opt(name)).await?;
        if metadata
            .as_ref()
            .is_none_or(|object| is_made_for(self.tf, object))
        {
            return Ok(metadata);
        }
        Err(Error::NameTaken {
            kind,
            name: name.to_owned(),
        })
    }

    /// Creates the `PersistentVolumeClaim` of the cache volume. Does not change the spec of an existing `PersistentVolumeClaim`: most fields are
    /// immutable, and a change that the API server refuses would block runs, in particular a destroy.
    async fn create_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let api = self.api::<PersistentVolumeClaim>();
        let operation = format!("create PersistentVolumeClaim {name}");
        match call(&operation, api.create(&PostParams::default(), claim)).await {
            Ok(created) => {
                self.ctx.mirrors.claims.record_write(created);
                Ok(())
            }
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::AlreadyExists) => {
                let operation = format!("read PersistentVolumeClaim {name}");
                let metadata = call(&operation, api.get_metadata_opt(&name)).await?;
                // The PersistentVolumeClaim existed at the time of the create, and was deleted before this read.
                let existing = metadata.ok_or(Error::Conflict)?;
                if self.is_ours(&existing)? && existing.metadata.deletion_timestamp.is_some() {
                    self.delete_finished_users(&name).await?;
                    return Err(Error::VolumeTerminating(name));
                }
                self.adopt(&api, &existing).await
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the Job that empties the directory of the resource in a shared cache volume. The directory contains reproducible data, so neither
    /// a quota, nor a policy, nor a terminating namespace may delay the deletion of the resource.
    async fn create_empty_cache_job(&self, job: &Job) -> Result<(), Error> {
        let (name, api) = (job.name_any(), self.api::<Job>());
        let operation = format!("create Job {name}");
        match call(&operation, api.create(&PostParams::default(), job)).await {
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::AlreadyExists) => {
                Ok(())
            }
            Err(Error::Call { source, .. })
                if has_status(&source, StatusKind::Forbidden)
                    || has_status(&source, StatusKind::Invalid)
                    || has_status(&source, StatusKind::NotFound) =>
            {
                warn!(
                    job = name,
                    error = %source,
                    "the directory of the resource in the shared cache volume is not emptied"
                );
                Ok(())
            }
            result => result.map(drop),
        }
    }

    /// Creates a Job. Succeeds if a Job with the same name and inputs already exists and belongs to the resource. An existing build with the same
    /// inputs may belong to another resource, because several resources may share a build.
    ///
    /// # Errors
    /// [`Error::JobNameConflict`] if an existing Job with this name has other inputs or another owner. If the existing Job belongs to the resource,
    /// deletes the existing Job.
    async fn create_job(&self, job: &Job) -> Result<(), Error> {
        let name = job.name_any();
        let namespace = job.namespace().unwrap_or_default();
        let api: Api<Job> = Api::namespaced(self.ctx.client.clone(), &namespace);
        match call(
            &format!("create Job {name}"),
            api.create(&PostParams::default(), job),
        )
        .await
        {
            Ok(created) => {
                info!(job = name, protocol = PROTOCOL, "created a Job");
                self.ctx.mirrors.jobs.record_write(created);
                Ok(())
            }
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::AlreadyExists) => {
                let operation = format!("read Job {name}");
                let Some(existing) = call(&operation, api.get_opt(&name)).await? else {
                    return Err(Error::Conflict);
                };
                let is_ours = is_made_for(self.tf, &existing);
                let is_build = has_component(&existing, Component::Build);
                let inputs = |job: &Job| job.annotations().get(labels::INPUTS).cloned();
                if inputs(&existing) == inputs(job) && (is_ours || is_build) {
                    self.ctx.mirrors.jobs.record_write(existing);
                    return Ok(());
                }
                let error = Error::JobNameConflict(name.clone());
                if is_ours {
                    let uid = existing.uid().unwrap_or_default();
                    delete::delete_job(self.ctx, &namespace, &name, &uid).await?;
                } else {
                    self.remember_denial(name, &error);
                }
                Err(error)
            }
            Err(error) => {
                self.remember_denial(name, &error);
                Err(error)
            }
        }
    }

    /// Stores why Job `name` cannot be created, if `error` is a denial ([`Error::denial`]). The next reconcile cancels the run of the Job and
    /// releases the slot of the run.
    fn remember_denial(&self, name: String, error: &Error) {
        if let Some(denial) = error.denial() {
            self.ctx.memory.set_denied(self.resource, name, denial);
        }
    }
}

/// Whether the operator keeps `entry` of `size` bytes when it frees space in a full run report. Returns true for the progress of the run, and for an
/// unsaved state of at most [`MAX_UNSAVED_STATE_BYTES`] bytes.
fn is_kept_when_full(entry: &str, size: usize) -> bool {
    match entry {
        key::PROGRESS => true,
        key::LEFTOVER => size <= MAX_UNSAVED_STATE_BYTES,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_report_keeps_progress_and_unsaved_state() {
        for (entry, size, is_kept) in [
            (key::PROGRESS, 1 << 20, true),
            (key::LEFTOVER, MAX_UNSAVED_STATE_BYTES, true),
            (key::LEFTOVER, MAX_UNSAVED_STATE_BYTES + 1, false),
            ("log-7", 1, false),
            ("of-a-module", 1, false),
        ] {
            assert_eq!(is_kept_when_full(entry, size), is_kept, "{entry}: {size}");
        }
    }
}
