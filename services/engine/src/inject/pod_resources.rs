//! Adapts pod-level resources (`spec.resources`) to the injected containers. The API server rejects a pod if its
//! containers request more than the pod does, or if one of them has a higher limit than the pod.

use crate::expression::Quantity;
use crate::json::{Document, Malformed, OwnedTape, Value};

use super::keys::text_of;

/// The spec of a pod with pod-level resources, before profiles are applied or their changes are undone.
pub(super) struct PodResources(OwnedTape);

/// The use of one resource by all containers of a pod. For a container without requests, its limits are used, as in the
/// scheduler. For a container without limits, its requests are used, so that the pod's limits are not below its
/// requests.
#[derive(Clone, Copy, Default)]
pub(crate) struct Use {
    pub(crate) requests: Quantity,
    limits: Quantity,
    /// The limits alone: a container without limits adds nothing.
    pub(crate) own_limits: Quantity,
    /// The largest limit of one container.
    largest_limit: Quantity,
}

impl PodResources {
    /// Reads a pod. `None` if it has no pod-level resources.
    pub(super) fn of(document: &mut Document<'_>) -> Result<Option<Self>, Malformed> {
        let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(None) };
        if document.member(spec, "resources")?.is_none() {
            return Ok(None);
        }
        let mut text = String::new();
        document.write(spec, &mut text);
        Ok(OwnedTape::parse(text).ok().map(Self))
    }

    /// Raises the pod's requests and limits by the increase of its containers' use. If the largest limit of one
    /// container increases, also raises the pod's limit to at least this limit. The use in `self` already includes the
    /// additions of an earlier pass, so nothing is added twice.
    pub(super) fn grow(self, document: &mut Document<'_>) -> Result<(), Malformed> {
        self.change(document, |kind, old, before, now| {
            let (requests, limits) = now.above(before);
            if kind == "requests" {
                return old.plus(requests);
            }
            let is_higher = now.largest_limit.is_more_than(before.largest_limit);
            let grown = old.plus(limits.larger(requests));
            if is_higher { grown.larger(now.largest_limit) } else { grown }
        })
    }

    /// Lowers the pod's requests and limits by the decrease of its containers' use.
    pub(super) fn shrink(self, document: &mut Document<'_>) -> Result<(), Malformed> {
        self.change(document, |kind, old, before, now| {
            let (requests, limits) = before.above(now);
            if kind == "requests" { old.above(requests) } else { old.above(limits.larger(requests)) }
        })
    }

    /// Replaces each of the pod's requests and limits with the result of `new`. The arguments are `requests` or
    /// `limits`, the old quantity, and the containers' use before and now.
    fn change(
        self,
        document: &mut Document<'_>,
        new: impl Fn(&str, Quantity, Use, Use) -> Quantity,
    ) -> Result<(), Malformed> {
        let Self(before) = self;
        let Some(Self(now)) = Self::of(document)? else { return Ok(()) };
        let Some(spec) = document.member(Document::ROOT, "spec")? else { return Ok(()) };
        let Some(resources) = document.member(spec, "resources")? else { return Ok(()) };
        for kind in ["requests", "limits"] {
            let Some(list) = document.member(resources, kind)? else { continue };
            document.open(list)?;
            let amounts: Vec<_> = document.children(list).collect();
            for amount in amounts {
                let Some(name) = document.key(amount).map(|key| key.text().into_owned()) else { continue };
                let Some(old) = document.raw(amount).and_then(quantity) else { continue };
                let all = |spec| Use::of(spec, &name, |_| true);
                let new = new(kind, old, all(before.root()), all(now.root()));
                if new.is_more_than(old) || old.is_more_than(new) {
                    let text = document.keep(format!("\"{new}\""));
                    document.replace(amount, text);
                }
            }
        }
        Ok(())
    }
}

impl Use {
    /// Returns the peak use of those containers of a pod that `is_counted` selects. Containers and native sidecars run
    /// at the same time. Other init containers run one after the other, together with the sidecars that started before
    /// them.
    pub(crate) fn of<'s>(spec: Value<'s>, resource: &str, is_counted: impl Fn(Value<'s>) -> bool) -> Self {
        let containers =
            |list: &str| spec.get(list).into_iter().flat_map(Value::items).filter(|container| is_counted(*container));
        let sum = |left: Self, right: Self| left.with(right, Quantity::plus);
        let running = containers("containers").map(|container| Self::of_one(container, resource));
        let running = running.fold(Self::default(), sum);
        let (mut sidecars, mut peak) = (Self::default(), Self::default());
        for container in containers("initContainers") {
            let own = Self::of_one(container, resource);
            let with_own = sum(sidecars, own);
            peak = peak.with(with_own, Quantity::larger);
            if container.get("restartPolicy").is_some_and(|policy| policy.is("Always")) {
                sidecars = with_own;
            }
        }
        sum(running, sidecars).with(peak, Quantity::larger)
    }

    fn of_one(container: Value<'_>, resource: &str) -> Self {
        let amount = |kind| quantity(container.at(&["resources", kind])?.get(resource)?.raw());
        let (requests, limits) = (amount("requests"), amount("limits"));
        Self {
            requests: requests.or(limits).unwrap_or_default(),
            limits: limits.or(requests).unwrap_or_default(),
            own_limits: limits.unwrap_or_default(),
            largest_limit: limits.unwrap_or_default(),
        }
    }

    /// Returns the differences by which the requests and limits exceed those of `other`.
    fn above(self, other: Self) -> (Quantity, Quantity) {
        (self.requests.above(other.requests), self.limits.above(other.limits))
    }

    fn with(self, other: Self, combine: fn(Quantity, Quantity) -> Quantity) -> Self {
        Self {
            requests: combine(self.requests, other.requests),
            limits: combine(self.limits, other.limits),
            own_limits: combine(self.own_limits, other.own_limits),
            largest_limit: self.largest_limit.larger(other.largest_limit),
        }
    }
}

/// Parses a quantity in JSON: a string or a number. `None` if it is invalid.
fn quantity(raw: &str) -> Option<Quantity> {
    match text_of(raw) {
        Some(text) => Quantity::read(&text),
        None => Quantity::read(raw),
    }
}
