//! A chain of edits of one resource, and the comparisons at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::{APPLY_AT, RECONCILE_AT, Reason, Terraform};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Request};
use kube::{Resource as _, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::mutate::edits::{ANNOTATIONS, Edit};
use crate::mutate::objects::{self, Objects};
use crate::mutate::oracles::{self, start};
use crate::mutate::schema::to_json;
use crate::mutate::seeds::{self, NAME, Seed};
use crate::mutate::world::{World, observed, status};
use crate::space::Space;

/// Annotation that starts a reconcile and has no other effect.
const TOUCH: &str = "alustan.io/touched";
/// Number of reconciles of a resource at rest.
const TOUCHES: usize = 2;

/// Maximum number of earlier resources to which a failed one returns at the end of a chain.
const RETURNS: usize = 4;

/// A resource, and the edits of the seed that led to it.
type Edited = (Value, Vec<String>);

/// Reasons of condition `Ready` with status Unknown that last.
const LASTING: [Reason; 6] = [
    Reason::AwaitingApproval,
    Reason::DependencyNotReady,
    Reason::ObjectNotReady,
    Reason::HealthCheckPending,
    Reason::Suspended,
    Reason::ObjectNotFound,
];

/// Reasons that only a resource with a state has.
const OF_A_STATE: [Reason; 3] = [
    Reason::BackendChanged,
    Reason::EngineChangeNotAllowed,
    Reason::AwaitingApproval,
];

/// A violation of an oracle.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) oracle: &'static str,
    pub(crate) place: String,
    pub(crate) detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n  {}\n  {}",
            self.oracle,
            self.place,
            start(&self.detail)
        )
    }
}

/// A time without writes of the operator.
pub(crate) struct Rest {
    pub(crate) namespace: String,
    pub(crate) place: String,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

/// Counts and findings of all chains.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) findings: Mutex<Vec<Finding>>,
    pub(crate) rests: Mutex<Vec<Rest>>,
    pub(crate) admitted: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) compared: AtomicUsize,
    pub(crate) returned: AtomicUsize,
    pub(crate) deleted: AtomicUsize,
    /// Objects of each seed when it was first applied.
    pub(crate) of_seeds: tokio::sync::Mutex<BTreeMap<String, Option<Objects>>>,
}

/// A chain of edits.
pub(crate) struct Chain {
    pub(crate) number: usize,
    pub(crate) seed: Seed,
    pub(crate) edits: Vec<Edit>,
    pub(crate) random: u64,
}

/// Executes chains.
#[derive(Clone, Copy)]
pub(crate) struct Driver<'a> {
    pub(crate) world: &'a World,
    pub(crate) log: &'a Log,
}

impl Driver<'_> {
    /// Executes `chain`.
    pub(crate) async fn execute(&self, chain: &Chain) {
        let place = format!("chain {} from {}", chain.number, chain.seed.origin);
        if let Err(problem) = self.try_execute(chain, &place).await {
            self.find("progress", &place, problem);
        }
    }

    async fn try_execute(&self, chain: &Chain, place: &str) -> Result<(), String> {
        let space = self.space(&chain.seed).await;
        let seed = &chain.seed.resource;
        self.send(&space, seed)
            .await
            .map_err(|(_, message)| message)?;
        let settled = self.settle(&space).await?;
        oracles::explanation(&settled)?;
        let before = self.objects_of_seed(&space, &chain.seed).await?;

        let mut random = Rng::with_seed(chain.random);
        // The edited resources that had no failure at the next edit, and the current one, each with its edits.
        let mut earlier = vec![(seed.clone(), Vec::new())];
        let mut current = earlier[0].clone();
        for edit in &chain.edits {
            // Most edits are made to a resource without a failure, so that they have an effect.
            if !self.has_failed(&space) {
                earlier.push(current.clone());
            } else if random.u8(..4) > 0 {
                current = earlier.last().unwrap().clone();
            }
            let what = format!("{place}: {} {}", edit.path(), edit.kind);
            let edited = edit.apply(current.0.clone());
            match self.send(&space, &edited).await {
                Err((code, message)) => {
                    self.log.refused.fetch_add(1, Ordering::Relaxed);
                    if let Err(problem) = oracles::refusal(code, &message) {
                        self.find("refused means with a path", &what, problem);
                    }
                }
                Ok(generation) => {
                    self.log.admitted.fetch_add(1, Ordering::Relaxed);
                    current.0 = edited;
                    current.1.push(format!("{} {}", edit.path(), edit.kind));
                    self.check_admitted(&space, generation, &what).await;
                }
            }
        }
        earlier.push(current);
        let edited = self
            .without_failure(&space, earlier, random.u8(..4) > 0)
            .await?;
        let (current, admitted) = edited;
        let place = format!("{place}, after {}", admitted.join(", "));
        let edited = self.settle(&space).await?;
        let fresh = self.space(&chain.seed).await;
        self.compare([&space, &fresh], &edited, &current, &place)
            .await?;
        if chain.number.is_multiple_of(2) {
            self.send(&space, seed)
                .await
                .map_err(|(_, message)| format!("the seed is refused: {message}"))?;
            self.settle(&space).await?;
            let after = self.applied_objects(&space, "return").await?;
            if let (Some(before), Some(after)) = (before, after) {
                self.log.returned.fetch_add(1, Ordering::Relaxed);
                for difference in objects::differences(&before, &after) {
                    self.find("return to the seed returns the objects", &place, difference);
                }
            }
        }
        self.delete(&space, &place).await
    }

    /// Returns the objects of a seed that is applied in `space`, or those of the first chain from this seed.
    async fn objects_of_seed(&self, space: &Space, seed: &Seed) -> Result<Option<Objects>, String> {
        let key = seed.resource.to_string();
        if let Some(objects) = self.log.of_seeds.lock().await.get(&key) {
            return Ok(objects.clone());
        }
        let objects = self.applied_objects(space, "seed").await?;
        let mut of_seeds = self.log.of_seeds.lock().await;
        Ok(of_seeds.entry(key).or_insert(objects).clone())
    }

    /// Waits until the resource has settled. If it has failed and `may_return`, returns it to up to [`RETURNS`] earlier resources until it has not.
    /// Returns the current resource.
    async fn without_failure(
        &self,
        space: &Space,
        mut earlier: Vec<Edited>,
        may_return: bool,
    ) -> Result<Edited, String> {
        let mut returns = if may_return { RETURNS } else { 0 };
        loop {
            let current = earlier.pop().unwrap();
            self.send(space, &current.0)
                .await
                .map_err(|(_, message)| format!("an earlier spec is refused: {message}"))?;
            self.settle(space).await?;
            if returns == 0 || earlier.is_empty() || !self.has_failed(space) {
                return Ok(current);
            }
            returns -= 1;
        }
    }

    /// Checks an admitted edit.
    async fn check_admitted(&self, space: &Space, generation: i64, what: &str) {
        let observed = self.world.until(&space.namespace, NAME, |resource, _| {
            observed(resource, generation).cloned()
        });
        let explained = observed
            .await
            .and_then(|resource| oracles::explanation(&resource));
        if let Err(problem) = explained {
            self.find("admitted means readable and explained", what, problem);
        }
    }

    /// Whether condition `Ready` is False.
    fn has_failed(&self, space: &Space) -> bool {
        let resource = self.world.seen(&space.namespace, NAME);
        resource.is_some_and(|resource| oracles::ready(&resource).0 == "False")
    }

    /// Compares the resource with one with the same spec in an empty namespace. Checks that both rest, and deletes the second one.
    async fn compare(
        &self,
        [space, fresh_space]: [&Space; 2],
        edited: &DynamicObject,
        spec: &Value,
        place: &str,
    ) -> Result<(), String> {
        if let Err(problem) = oracles::explanation(edited) {
            self.find("admitted means readable and explained", place, problem);
        }
        self.send(fresh_space, spec)
            .await
            .map_err(|(_, message)| format!("refused in an empty namespace: {message}"))?;
        let fresh = self.settle(fresh_space).await?;
        if let Err(problem) = oracles::explanation(&fresh) {
            self.find("admitted means readable and explained", place, problem);
        }
        let objects = self.applied_objects(space, "compare").await?;
        let fresh_objects = self.applied_objects(fresh_space, "compare").await?;
        if let (Some(objects), Some(fresh_objects)) = (objects, fresh_objects) {
            self.log.compared.fetch_add(1, Ordering::Relaxed);
            for difference in objects::differences(&objects, &fresh_objects) {
                self.find("same objects as from an empty namespace", place, difference);
            }
        } else {
            let [edited, fresh] = [edited, &fresh].map(oracles::ready);
            // A resource whose edits require no apply stays Ready. A resource that has a state may be refused.
            if fresh.0 == "True"
                && edited.0 != "True"
                && !OF_A_STATE.iter().any(|reason| edited.1 == *reason)
            {
                let detail = format!("{edited:?} after edits, {fresh:?} in an empty namespace");
                self.find("same condition as from an empty namespace", place, detail);
            }
        }
        self.rest(space, place).await?;
        self.rest(fresh_space, place).await?;
        self.delete(fresh_space, place).await
    }

    /// Creates a namespace with the objects that `seed` names.
    async fn space(&self, seed: &Seed) -> Space {
        let space = Space::of(&self.world.server, json!({})).await;
        seeds::create_inputs(&space, seed).await;
        space
    }

    /// Creates or replaces a resource, like `kubectl replace`. Server-side apply reads its body as YAML, whose errors name no field. Returns the
    /// generation, or status and message of the refusal.
    async fn send(&self, space: &Space, resource: &Value) -> Result<i64, (u16, String)> {
        let request = Request::new(Terraform::url_path(&(), Some(&space.namespace)));
        loop {
            let mut resource = resource.clone();
            let stored = self.world.seen(&space.namespace, NAME);
            let version = stored.as_ref().and_then(|stored| stored.resource_version());
            if let Some(stored) = &stored {
                resource["metadata"]["resourceVersion"] = version.clone().into();
                resource["metadata"]["finalizers"] = json!(stored.finalizers());
                let annotations = stored.annotations().iter();
                for (name, value) in
                    annotations.filter(|(name, _)| !ANNOTATIONS.contains(&name.as_str()))
                {
                    resource["metadata"]["annotations"][name] = value.clone().into();
                }
            }
            let body = to_json(&resource).into_bytes();
            let parameters = PostParams::default();
            let mut request = match stored {
                None => request.create(&parameters, body),
                Some(_) => request.replace(NAME, &parameters, body),
            }
            .unwrap();
            let uri = format!("{}fieldValidation=Strict", request.uri());
            *request.uri_mut() = uri.parse().unwrap();
            let answer = space.client.request::<DynamicObject>(request).await;
            match answer {
                Ok(stored) => {
                    let generation = stored.metadata.generation.unwrap_or_default();
                    let _ = self
                        .world
                        .until(&space.namespace, NAME, |resource, _| {
                            let seen = resource.and_then(|resource| resource.metadata.generation);
                            (seen >= Some(generation))
                                .then_some(())
                                .ok_or_else(String::new)
                        })
                        .await;
                    return Ok(generation);
                }
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    let newer = self.world.until(&space.namespace, NAME, |resource, _| {
                        let newer = resource.and_then(ResourceExt::resource_version);
                        (newer != version)
                            .then_some(())
                            .ok_or_else(|| status.message.clone())
                    });
                    newer.await.map_err(|message| (409, message))?;
                }
                Err(kube::Error::Api(status)) => return Err((status.code, status.message)),
                Err(error) => return Err((0, error.to_string())),
            }
        }
    }

    async fn annotate(&self, space: &Space, annotations: &Value) -> Result<(), String> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let edit = PatchParams::default();
        let patched = space.raw().patch(NAME, &edit, &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    }

    /// Waits until runs and builds have ended and the status does not change any more.
    async fn settle(&self, space: &Space) -> Result<DynamicObject, String> {
        loop {
            let settled = self.until_settled(space).await?;
            self.world.mark().await?;
            let again = self.until_settled(space).await?;
            if again.resource_version() == settled.resource_version() {
                return Ok(again);
            }
        }
    }

    async fn until_settled(&self, space: &Space) -> Result<DynamicObject, String> {
        self.world
            .until(&space.namespace, NAME, |resource, is_idle| {
                let generation = resource.and_then(|resource| resource.metadata.generation);
                let resource = observed(resource, generation.unwrap_or_default())?;
                let (ready, reason) = oracles::ready(resource);
                let lasts = LASTING.iter().any(|lasting| reason == *lasting);
                if is_idle && (ready != "Unknown" || lasts) {
                    Ok(resource.clone())
                } else {
                    Err(format!(
                        "not settled: idle {is_idle}, {:?}",
                        status(resource)
                    ))
                }
            })
            .await
    }

    /// Requests an apply with the current spec. Returns the objects, or `None` if the resource is not applied.
    async fn applied_objects(
        &self,
        space: &Space,
        request: &str,
    ) -> Result<Option<Objects>, String> {
        let resource = self.settle(space).await?;
        let spec = &resource.data["spec"];
        let may_apply = oracles::ready(&resource).0 == "True"
            && spec["mode"] != "PlanOnly"
            && spec["suspend"] != true
            && spec["approval"]["mode"] != "Manual";
        if !may_apply {
            return Ok(None);
        }
        let run = status(&resource).run;
        self.annotate(space, &json!({RECONCILE_AT: request, APPLY_AT: request}))
            .await?;
        let started = self.world.until(&space.namespace, NAME, |resource, _| {
            let resource = resource.ok_or("the resource does not exist")?;
            let has_run = status(resource).run != run;
            if has_run || oracles::ready(resource).0 == "False" {
                Ok(has_run)
            } else {
                Err(format!("no requested run: {:?}", status(resource)))
            }
        });
        if !started.await? {
            return Ok(None);
        }
        let resource = self.settle(space).await?;
        let is_applied = oracles::ready(&resource).0 == "True";
        Ok(if is_applied {
            Some(objects::of(space).await)
        } else {
            None
        })
    }

    /// Forces reconciles of a resource at rest. [`Log::rests`] gets the time in which the operator must write nothing.
    async fn rest(&self, space: &Space, place: &str) -> Result<(), String> {
        let settled = self.settle(space).await?;
        if oracles::ready(&settled).0 != "True" && !oracles::is_stalled(&settled) {
            return Ok(());
        }
        self.world.mark().await?;
        let from = Timestamp::now();
        for touch in 0..TOUCHES {
            self.annotate(space, &json!({TOUCH: touch.to_string()}))
                .await?;
            self.world.mark().await?;
        }
        self.log.rests.lock().push(Rest {
            namespace: space.namespace.clone(),
            place: place.to_owned(),
            from,
            to: Timestamp::now(),
        });
        Ok(())
    }

    /// Deletes the resource as documented, and checks that nothing is left.
    async fn delete(&self, space: &Space, place: &str) -> Result<(), String> {
        let oracle = "deletion from any of them ends";
        let stored = space.raw().get(NAME).await.unwrap();
        let spec = &stored.data["spec"];
        let mut release = json!({});
        if spec["deletionProtection"] == true {
            release["deletionProtection"] = false.into();
        }
        if spec["suspend"] == true {
            release["suspend"] = false.into();
        }
        if spec["mode"] == "PlanOnly" {
            release["deletionPolicy"] = "Orphan".into();
        }
        if spec["approval"]["destroy"] == "Manual" {
            release["approval"] = json!({"destroy": "Auto"});
        }
        if release != json!({}) {
            let patch = Patch::Merge(json!({"spec": release}));
            let patched = space
                .raw()
                .patch(NAME, &PatchParams::default(), &patch)
                .await;
            patched.map_err(|error| format!("{release}: {error}"))?;
        }
        space
            .raw()
            .delete(NAME, &DeleteParams::default())
            .await
            .map_err(|error| format!("deletion is refused: {error}"))?;
        // Some deletions wait until the user changes a field.
        let field = |status: &str| {
            let fields = [
                ("spec.destroyWaitFor[", json!({"destroyWaitFor": null})),
                ("spec.runner.pod", json!({"runner": {"pod": null}})),
            ];
            let named = fields.into_iter().find(|(path, _)| status.contains(path));
            named.map(|(_, field)| field)
        };
        let mut deleted = self
            .until_deleted(space, |status| field(status).is_some())
            .await;
        if let Some(field) = deleted.as_ref().err().and_then(|status| field(status)) {
            let patch = Patch::Merge(json!({"spec": field}));
            let patched = space
                .raw()
                .patch(NAME, &PatchParams::default(), &patch)
                .await;
            patched.map_err(|error| format!("{field}: {error}"))?;
            deleted = self.until_deleted(space, |_| false).await;
        }
        if let Err(problem) = deleted {
            self.find(oracle, place, problem);
            return Ok(());
        }
        self.world.mark().await?;
        self.log.deleted.fetch_add(1, Ordering::Relaxed);
        let left = objects::left(space).await;
        if !left.is_empty() {
            self.find(oracle, place, format!("left: {left:?}"));
        }
        Ok(())
    }

    /// Waits until the resource is gone.
    ///
    /// # Errors
    /// The status, if it is one that `stays` or after the deadline.
    async fn until_deleted(
        &self,
        space: &Space,
        stays: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let gone = self
            .world
            .until(&space.namespace, NAME, |resource, _| match resource {
                None => Ok(Ok(())),
                Some(resource) => {
                    let status = format!("{:?}", status(resource));
                    if stays(&status) {
                        Ok(Err(status))
                    } else {
                        Err(status)
                    }
                }
            });
        gone.await?
    }

    fn find(&self, oracle: &'static str, place: &str, detail: String) {
        let finding = Finding {
            oracle,
            place: start(place),
            detail,
        };
        eprintln!("{finding}");
        self.log.findings.lock().push(finding);
    }
}
