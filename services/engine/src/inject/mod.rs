//! Merges the templates of the selected profiles into an object, and writes the injection record.
//!
//! Profiles are applied one after the other, each either completely or not at all.
//!
//! A *pass* is one call of the webhook for an object. The API server may call the webhook again for the same object, if
//! a later webhook changed it (`reinvocationPolicy: IfNeeded`). The injection record in the object lists the changes of
//! earlier passes.
//!
//! A *stand-in* is a namespaced profile that is applied instead of the cluster profile that it extends. It is treated
//! like a cluster profile.

mod keys;
pub(crate) mod managed_fields;
pub(crate) mod pod_resources;
mod undo;
mod merge;
mod render;
mod notes;
mod elements;
mod join;
mod changes;
mod containers;

use std::borrow::Cow;
use std::collections::HashSet;

use pillion_api::names::INJECTED_ANNOTATION;
use pillion_api::profile::{ContainerType, FailurePolicy};

use crate::context::{Arena, EvalContext};
use crate::decision::{ProfileOutcome, Reason};
use crate::expression::{Meter, Purpose};
use crate::json::{Content, Document, Key, Kind, Malformed, OwnedTape, SlotId, Value};
use crate::limits::{self, Excess, Limit, Protected, TenantLimits};
use crate::patch::{self, MAX_OBJECT_BYTES, MAX_PATCH_BYTES};
use crate::profile::{CompiledProfile, Limits};
use crate::record::{Change, Record, RecordWriter};
use crate::schema::Type;
use crate::select::Selected;

use containers::ContainerOrigin;
use keys::text_of;
use managed_fields::ManagedFields;
pub use managed_fields::is_whole;
use merge::{
    ApplyOutput, Confirmed, Conflict, InsertCounts, Merge, MergeError, MergeInputs, MergeScratch, ProfileOrigin,
};
use pod_resources::PodResources;
pub(crate) use undo::{NamespaceChanges, PolicyChanges, without_record};
pub use undo::{UndoError, Undone, undo};

/// The node label for the operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// An upper bound for the number of bytes that a patch needs to set the record's annotation, in addition to the record
/// itself: the operation, its path and the key.
const RECORD_AROUND: usize = 1024;

/// The outcome of one profile.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: ProfileOutcome,
    pub(crate) reason: Reason,
    pub(crate) detail: Option<Box<str>>,
    /// Messages for the author of the object.
    pub(crate) notes: Vec<Box<str>>,
}

/// The object to which profiles are applied.
#[derive(Clone, Copy)]
pub(crate) struct InjectTarget<'a> {
    /// The object of the request.
    pub(crate) object: Value<'a>,
    pub(crate) type_: &'static Type,
    pub(crate) context: EvalContext<'a>,
    pub(crate) arena: &'a Arena,
    /// The injection record of an earlier pass, if there was one.
    pub(crate) earlier: Option<&'a Record>,
    /// The changes of the safety net's admission policy. They are undone before the first profile is applied.
    pub(crate) policy: Option<&'a PolicyChanges<'a>>,
    /// The limits of the namespaced profiles.
    pub(crate) limits: TenantLimits<'a>,
}

/// The namespaced profiles that are left out, with the reasons.
#[derive(Clone, Copy, Default)]
pub(crate) struct Exclusions<'p, 'a> {
    /// The reason why stand-ins for cluster profiles are left out, so that the cluster profiles themselves are applied.
    /// `None` if stand-ins are not left out.
    pub(crate) stand_ins: Option<&'p str>,
    /// The reason why all other namespaced profiles are left out. Their changes from an earlier pass are undone first.
    /// `None` if these profiles are not left out.
    pub(crate) others: Option<(&'p str, &'a NamespaceChanges<'a>)>,
}

/// The result of applying all profiles.
pub(crate) struct Applied<'a> {
    pub(crate) document: Document<'a>,
    /// The outcome of each profile. `None` if selection excluded the profile or another profile stands in for it.
    pub(crate) verdicts: Vec<Option<Verdict>>,
    /// The record as a JSON string. `None` if it has no entries.
    pub(crate) record: Option<String>,
    /// The places that cluster profiles changed, or that already had their values. Set only if [`Exclusions::others`]
    /// is set and the record can be read.
    pub(crate) protected: Option<Protected>,
}

impl<'a> InjectTarget<'a> {
    /// Returns the object without the changes of the safety net's policy.
    pub(crate) const fn object_without_policy(&self) -> Value<'a> {
        if self.policy.is_some() { self.context.object } else { self.object }
    }
}

impl Verdict {
    /// Returns the outcome of a profile that is not applied. `policy` determines whether the profile is skipped or the
    /// object is denied.
    fn skipped(policy: FailurePolicy, reason: Reason, detail: Box<str>) -> Self {
        let outcome = ProfileOutcome::of_failure(policy);
        Self { outcome, reason, detail: Some(detail), notes: Vec::new() }
    }

    /// Whether the profile was not applied, although it matches the object.
    pub(crate) const fn is_skipped(&self) -> bool {
        matches!(self.outcome, ProfileOutcome::Skipped | ProfileOutcome::Denied)
    }
}

impl Exclusions<'_, '_> {
    /// Returns the reason why a profile is left out. `None` if it is not left out.
    fn reason(&self, selected: &Selected<'_>) -> Option<&str> {
        if selected.stands_in {
            self.stand_ins
        } else {
            self.others.map(|(why, _)| why).filter(|_| !selected.is_of_platform())
        }
    }
}

/// Applies all profiles that neither selection nor `exclusions` left out.
pub(crate) fn apply<'a>(
    profiles: &[Selected<'a>],
    target: InjectTarget<'a>,
    exclusions: Exclusions<'_, 'a>,
) -> Result<Applied<'a>, Malformed> {
    let (mut document, earlier) = match exclusions.others {
        Some((_, changes)) => (changes.undone(target.object, target.type_, target.policy)?, Some(&changes.others)),
        None => match target.policy {
            Some(policy) => (policy.undone(target.object, target.type_)?, target.earlier),
            None => (Document::new(target.object), target.earlier),
        },
    };
    let is_alone = exclusions.others.is_some();
    let resources = if target.type_.is_pod() { PodResources::of(&mut document)? } else { None };
    let mut record = RecordWriter::new();
    if let Some(earlier) = earlier {
        record.keep_others(earlier, |name| {
            let mut selected = profiles.iter().filter(|selected| selected.profile.display_name() == name);
            selected.any(|selected| is_applicable(selected))
        });
    }
    let mut pass = Pass {
        target,
        earlier,
        record,
        insert_counts: InsertCounts::default(),
        merge_scratch: MergeScratch::default(),
        injected: Injected::wanted_by(profiles),
        is_watched: is_alone || profiles.iter().any(|selected| !selected.is_of_platform()),
        confirmed: Confirmed::default(),
        is_touched: target.policy.is_some(),
        rendered: None,
    };
    let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(profiles.len());
    for selected in profiles {
        let name = selected.profile.display_name();
        let verdict = if !is_applicable(selected) {
            None
        } else if is_replaced(selected, verdicts.last(), earlier) {
            pass.record.keep_of(earlier, name);
            None
        } else if selected.stands_in && was_only_parent_applied(selected.profile, earlier) {
            let detail = "an earlier pass applied the cluster profile that it extends";
            Some(Verdict::skipped(FailurePolicy::Ignore, Reason::LimitExceeded, detail.into()))
        } else if let Some(why) = exclusions.reason(selected) {
            pass.record.keep_of(earlier, name);
            // If a stand-in is left out, the cluster profile is applied instead.
            let policy = if selected.stands_in { FailurePolicy::Ignore } else { selected.profile.failure_policy };
            Some(Verdict::skipped(policy, Reason::LimitExceeded, why.into()))
        } else {
            Some(pass.apply_or_roll_back(&mut document, selected)?)
        };
        verdicts.push(verdict);
    }
    let protected = if is_alone { pass.protected() } else { None };
    if let Some(resources) = resources {
        resources.grow(&mut document)?;
    }
    Ok(Applied { document, verdicts, protected, record: pass.record.finish(earlier) })
}

/// Whether a profile may be applied: selection did not exclude it, or excluded it only because another profile stands
/// in for it.
fn is_applicable(selected: &Selected<'_>) -> bool {
    let decision = &selected.decision;
    decision.outcome == ProfileOutcome::Unchanged || decision.reason == Reason::Extended
}

/// Whether a stand-in replaces the cluster profile. `stand_in` is the verdict of the preceding profile. If an earlier
/// pass applied the stand-in, it replaces the cluster profile even if this pass skips the stand-in.
fn is_replaced(selected: &Selected<'_>, stand_in: Option<&Option<Verdict>>, earlier: Option<&Record>) -> bool {
    let Some(name) = selected.decision.detail.as_deref().filter(|_| selected.decision.reason == Reason::Extended)
    else {
        return false;
    };
    let is_skipped = matches!(stand_in, Some(Some(verdict)) if verdict.outcome == ProfileOutcome::Skipped);
    !is_skipped || earlier.is_some_and(|earlier| earlier.has(name))
}

/// Whether an earlier pass applied the parent of a profile, but not the profile itself.
fn was_only_parent_applied(profile: &CompiledProfile, earlier: Option<&Record>) -> bool {
    let has = |name: &str| earlier.is_some_and(|earlier| earlier.has(name));
    !has(profile.display_name()) && profile.ancestors().next().is_some_and(has)
}

/// One pass that applies all profiles to an object.
struct Pass<'a> {
    target: InjectTarget<'a>,
    /// The record of an earlier pass, without changes that were undone before this pass.
    earlier: Option<&'a Record>,
    record: RecordWriter,
    insert_counts: InsertCounts,
    merge_scratch: MergeScratch<'a>,
    injected: Injected,
    /// Whether places that already have the values of cluster profiles are collected, to protect them from namespaced
    /// profiles.
    is_watched: bool,
    confirmed: Confirmed,
    /// Whether the document may differ from the object of the request: this pass has applied a profile, or has undone
    /// the changes of the safety net's policy.
    is_touched: bool,
    /// The object with the changes of this pass so far. `None` if there are no changes, or if it must be rendered
    /// again.
    rendered: Option<OwnedTape>,
}

impl<'a> Pass<'a> {
    /// Applies a profile completely, or leaves the document unchanged.
    fn apply_or_roll_back(
        &mut self,
        document: &mut Document<'a>,
        selected: &Selected<'a>,
    ) -> Result<Verdict, Malformed> {
        let (profile, name) = (selected.profile, selected.profile.display_name());
        document.mark();
        let (insert_counts, confirmed) = (self.insert_counts.clone(), self.confirmed.len());
        if self.earlier.is_some() {
            self.injected.profiles.push(name.into());
        }
        let protected =
            if selected.is_of_platform() { Ok(None) } else { self.prepare_check(document, selected).map(Some) };
        let mark = self.record.begin(name, profile.revision(), self.earlier);
        if let Some(parent) = profile.ancestors().next().filter(|_| profile.limits() == Limits::Parent) {
            self.record.extends(name, parent, self.earlier);
        }
        let output = match &protected {
            Ok(protected) => self.apply_and_check(document, selected, protected.as_ref()),
            Err(excess) => Err(MergeError::from(excess)),
        };
        if !matches!(output, Ok(ApplyOutput { changes: 1.., .. })) {
            // The object still has the changes that an earlier pass made with the revision that was active then.
            self.record.keep(mark, self.earlier, name);
        }
        let (Conflict { reason, place }, policy) = match output {
            Ok(ApplyOutput { changes, notes, containers }) => {
                self.is_touched = true;
                if self.injected.is_wanted {
                    self.injected.extend(containers, !profile.is_limited());
                }
                let (outcome, reason) = match changes {
                    0 => (ProfileOutcome::Unchanged, Reason::AlreadyInjected),
                    _ => (ProfileOutcome::Applied, Reason::Injected),
                };
                return Ok(Verdict { outcome, reason, detail: None, notes });
            }
            Err(MergeError::Conflict(conflict)) => (conflict, profile.failure_policy),
            Err(MergeError::Denied(conflict)) => (conflict, FailurePolicy::Fail),
            Err(MergeError::Malformed(malformed)) => return Err(malformed),
        };
        document.go_back();
        self.insert_counts = insert_counts;
        self.confirmed.truncate(confirmed);
        Ok(Verdict::skipped(policy, reason, place))
    }

    /// Applies a profile. For a namespaced profile that is not a stand-in, `protected` is set, and the result is
    /// checked against it.
    fn apply_and_check(
        &mut self,
        document: &mut Document<'a>,
        selected: &Selected<'a>,
        protected: Option<&Protected>,
    ) -> Result<ApplyOutput, MergeError> {
        let output = self.apply_profile(document, selected, protected)?;
        if !self.record.end() {
            return Err(MergeError::conflict(Reason::RecordTooLarge, INJECTED_ANNOTATION));
        }
        self.rendered = match protected {
            Some(protected) => {
                Some(self.check(selected.profile, protected, document).map_err(|excess| MergeError::from(&excess))?)
            }
            None => None,
        };
        Ok(output)
    }

    /// Prepares for a namespaced profile: resets the counts of first positions, renders the object to compare the
    /// result with, and returns the protected places. Fails if the record cannot be read, or if the namespace's
    /// remaining budget is too small for the check.
    fn prepare_check(&mut self, document: &Document<'a>, selected: &Selected<'a>) -> Result<Protected, Excess> {
        self.insert_counts.reset_first();
        let protected = self.protected().ok_or_else(Excess::unreadable)?;
        let renders = self.is_touched && self.rendered.is_none();
        if let Some(bindings) = &selected.bindings {
            // The check renders the result too. Its growth is limited, so it has about the size of the object.
            let bytes = self.target.object.raw().len() * if renders { 2 } else { 1 };
            let mut meter = bindings.meter(Purpose::Decide, Meter::PROFILE);
            meter.charge_bytes(bytes).map_err(|_| Excess::too_much_work())?;
        }
        if renders {
            self.rendered = Some(limits::render(document)?);
        }
        Ok(protected)
    }

    /// Returns the places that cluster profiles changed so far, or that already had their values. `None` if the record
    /// cannot be read.
    fn protected(&self) -> Option<Protected> {
        let record = self.record.finished_entries()?;
        let places = self.confirmed.iter().map(|(pointer, done)| (Cow::Borrowed(&**pointer), *done));
        Some(Protected::new(record.of_the_platform().chain(places)))
    }

    /// Checks the changes of a namespaced profile against the protected places, the tenant limits, and the maximum size
    /// of a patch. Returns the changed object.
    fn check(
        &self,
        profile: &CompiledProfile,
        protected: &Protected,
        document: &Document<'a>,
    ) -> Result<OwnedTape, Excess> {
        // The profile must not replace a protected value even with an equal one. Otherwise, the record would attribute
        // the value to the profile.
        let record = self.record.finished_entries().ok_or_else(Excess::unreadable)?;
        protected.check_replaced(record.replaced_by(profile.display_name()))?;
        let before = self.rendered.as_ref().map_or(self.target.object, OwnedTape::root);
        let after = limits::render(document)?;
        self.target.limits.check(profile.limits(), before, after.root(), protected)?;
        let patch = patch::length(document) + self.record.len() + RECORD_AROUND;
        let object = self.target.object_without_policy().raw().len();
        if patch::fits(patch, object) {
            return Ok(after);
        }
        let message = format!(
            "the patch of all profiles would have {patch} bytes, and the object has {object} bytes; \
             {MAX_PATCH_BYTES} and {MAX_OBJECT_BYTES} in total are allowed; make the profile smaller"
        );
        Err(Excess::new(Limit::Patch, "/", message))
    }

    /// Merges the template and the container patches of one profile into the document.
    fn apply_profile(
        &mut self,
        document: &mut Document<'a>,
        selected: &Selected<'a>,
        protected: Option<&Protected>,
    ) -> Result<ApplyOutput, MergeError> {
        let Self { target, earlier, record, insert_counts, merge_scratch, injected, is_watched, confirmed, .. } = self;
        let profile: &'a CompiledProfile = selected.profile;
        let Some(bindings) = &selected.bindings else { return Ok(ApplyOutput::default()) };
        let refuses_containers = profile.adds_linux_containers && is_for_windows(document)?;
        let earlier = earlier.map(|record| record.of(profile.display_name(), |other| injected.knows(other)));
        let earlier = earlier.unwrap_or_default();
        let is_platform = !profile.is_limited();
        if injected.is_wanted {
            // Containers that an earlier pass added are already in the object, even if this pass adds none.
            let own = earlier.added.iter().filter(|added| !earlier.moved.iter().any(|moved| *moved == ***added));
            injected.extend(own.map(|at| Box::from(&**at)), is_platform);
        }
        let inputs = MergeInputs {
            document,
            insert_counts,
            merge_scratch,
            record,
            bindings,
            arena: target.arena,
            managed_fields: ManagedFields::of(target.object),
            type_: profile.object_type(),
            collects_containers: injected.is_wanted || refuses_containers,
            changes_own: profile.container_patches.iter().any(|patch| patch.types.contains(&ContainerType::Injected)),
            profile_origin: match protected {
                Some(protected) => ProfileOrigin::Namespace(protected),
                None if *is_watched => ProfileOrigin::Watched(confirmed),
                None => ProfileOrigin::Platform,
            },
        };
        let mut merge = Merge::new(inputs, &earlier);
        if let Some(template) = &profile.template {
            merge.merge_template(template, profile.object_type())?;
        }
        // Conditions determine which containers are added, so the pod's operating system is checked only after the
        // merge.
        if refuses_containers && !merge.containers.is_empty() {
            return Err(MergeError::conflict(Reason::OperatingSystem, "/spec/os/name"));
        }
        if !profile.container_patches.is_empty() {
            let own = std::mem::take(&mut merge.containers);
            let is_later =
                |change: &Change<'_>, pointer: &str| matches!(change, Change::Added(added) if added == pointer);
            let origin = |pointer: &str| match injected.origin(pointer, is_platform) {
                _ if own.iter().any(|own| **own == *pointer) => ContainerOrigin::Injected,
                ContainerOrigin::Author if earlier.later.iter().any(|change| is_later(change, pointer)) => {
                    ContainerOrigin::Hidden
                }
                origin => origin,
            };
            merge.patch_containers(&profile.container_patches, target.context.object, &origin)?;
            merge.containers = own;
        }
        if merge.changes > 0 && target.type_.is_pod() {
            // Containers that the safety net's policy added are not the author's.
            merge.check_containers(target.object_without_policy())?;
        }
        let output = merge.finish();
        if let Some(volume) = missing_volume(document, &profile.foreign_volumes)? {
            return Err(MergeError::conflict(Reason::MissingVolume, volume));
        }
        Ok(output)
    }
}

/// The containers that profiles have added so far.
#[derive(Default)]
struct Injected {
    /// Whether any profile has container patches. Only container patches need to know the injected containers.
    is_wanted: bool,
    /// The pointers of added containers, and whether a cluster profile, or a profile that only extends one, added them.
    places: Vec<(Box<str>, bool)>,
    /// The profiles that this pass has processed so far. Collected only if an earlier pass left a record.
    profiles: Vec<Box<str>>,
}

impl Injected {
    fn wanted_by(profiles: &[Selected<'_>]) -> Self {
        Self {
            is_wanted: profiles.iter().any(|selected| !selected.profile.container_patches.is_empty()),
            ..Self::default()
        }
    }

    fn extend(&mut self, places: impl IntoIterator<Item = Box<str>>, is_platform: bool) {
        // Reserve capacity for the containers of all profiles at once.
        self.places.reserve(8);
        self.places.extend(places.into_iter().map(|place| (place, is_platform)));
    }

    /// Whether this pass has already processed a profile. Always false if no earlier pass left a record.
    fn knows(&self, profile: &str) -> bool {
        self.profiles.iter().any(|applied| **applied == *profile)
    }

    /// Returns the origin of the container at a pointer. If `seen_by_platform` is false, a container is hidden if only
    /// cluster profiles, or profiles that only extend one, added it.
    fn origin(&self, pointer: &str, seen_by_platform: bool) -> ContainerOrigin {
        let mut origin = ContainerOrigin::Author;
        for (_, by_platform) in self.places.iter().filter(|(place, _)| **place == *pointer) {
            if seen_by_platform || !by_platform {
                return ContainerOrigin::Injected;
            }
            origin = ContainerOrigin::Hidden;
        }
        origin
    }
}

fn is_for_windows(document: &mut Document<'_>) -> Result<bool, Malformed> {
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(false) };
    let by_name = document.value_of(spec, "os").and_then(|os| os.get("name")).is_some_and(|name| name.is("windows"));
    let selector = document.value_of(spec, "nodeSelector");
    let by_node = selector.and_then(|selector| selector.get(OS_LABEL)).is_some_and(|name| name.is("windows"));
    Ok(by_name || by_node)
}

/// Returns the first of the named volumes that a container mounts but the pod does not have.
fn missing_volume<'n>(document: &mut Document<'_>, names: &'n [Box<str>]) -> Result<Option<&'n str>, Malformed> {
    if names.is_empty() {
        return Ok(None);
    }
    let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(None) };
    let absent = absent_volumes(document, spec, names)?;
    let Some(first) = absent.first().copied() else { return Ok(None) };
    let mut text = String::new();
    document.write(spec, &mut text);
    let Ok(spec) = OwnedTape::parse(text) else { return Ok(Some(first)) };
    let containers = ["initContainers", "containers"].into_iter().filter_map(|list| spec.root().get(list));
    let mounts = containers.flat_map(Value::items).filter_map(|container| container.get("volumeMounts"));
    let mounted: HashSet<_> = mounts.flat_map(Value::items).filter_map(|mount| mount.get("name")?.as_str()).collect();
    // Containers and mounts that `$when` leaves out need no volume.
    Ok(absent.into_iter().find(|volume| mounted.contains(*volume)))
}

/// Returns the named volumes that the pod does not have.
fn absent_volumes<'n>(
    document: &mut Document<'_>,
    spec: SlotId,
    names: &'n [Box<str>],
) -> Result<Vec<&'n str>, Malformed> {
    let names = names.iter().map(|name| &**name);
    let Some(volumes) = document.member(spec, "volumes")? else { return Ok(names.collect()) };
    document.open(volumes)?;
    let existing = document.children(volumes).filter_map(|volume| document.value_of(volume, "name")?.as_str());
    let existing: HashSet<_> = existing.collect();
    Ok(names.filter(|name| !existing.contains(*name)).collect())
}

/// Sets the annotation of the record, or removes it if `text` is `None`. `text` is the record as a JSON string.
pub(crate) fn set_record(document: &mut Document<'_>, text: Option<String>) -> Result<(), Malformed> {
    let metadata = match document.member(Document::ROOT, "metadata")? {
        Some(metadata) if document.kind(metadata) == Kind::Object => metadata,
        // API servers never send a pod without metadata, but other callers may.
        found if text.is_some() => match found {
            Some(other) => {
                document.replace(other, Content::Map);
                other
            }
            None => document.add_member(Document::ROOT, Key::new("metadata"), Content::Map),
        },
        _ => return Ok(()),
    };
    let annotations = match document.member(metadata, "annotations")? {
        Some(annotations) if document.kind(annotations) == Kind::Object => annotations,
        Some(other) if text.is_some() => {
            document.replace(other, Content::Map);
            other
        }
        None if text.is_some() => document.add_member(metadata, Key::new("annotations"), Content::Map),
        _ => return Ok(()),
    };
    match (document.member(annotations, INJECTED_ANNOTATION)?, text) {
        (Some(existing), Some(text)) => {
            // The API server may have escaped the annotation differently.
            let same = match document.content(existing) {
                Content::Value(value) => {
                    value.raw() == text || (value.as_str().is_some() && value.as_str() == text_of(&text))
                }
                _ => false,
            };
            if !same {
                let text = document.keep(text);
                document.replace(existing, text);
            }
        }
        (Some(existing), None) => document.remove(existing, annotations),
        (None, Some(text)) => {
            let text = document.keep(text);
            document.add_member(annotations, Key::new(INJECTED_ANNOTATION), text);
        }
        (None, None) => {}
    }
    Ok(())
}
