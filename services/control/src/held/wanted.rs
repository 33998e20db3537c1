//! Decides whether pods should wait, and whether new pods are injected. The leader's other tasks send the inputs.

use pillion_api::names::FailureMode;
use tokio::sync::watch;

use super::Injection;
use crate::probe::ProbeRound;
use crate::webhook_config::Live;

/// Inputs from the leader's other tasks.
#[derive(Debug)]
pub struct Inputs {
    /// Results of probing the endpoints.
    pub found: watch::Receiver<Option<ProbeRound>>,
    /// The webhook configurations.
    pub live: watch::Receiver<Option<Live>>,
    /// Whether the kill switch has disabled injection; `None` until that is known.
    pub off: watch::Receiver<Option<bool>>,
}

/// Computes whether pods should wait and whether new pods are injected, at the start and after each change of an input.
/// Sends the first value to `policies` and the second to `injection`, each only if it differs from the last one sent.
/// Returns when the sender of an input is dropped.
pub async fn follow(mut inputs: Inputs, policies: watch::Sender<Option<bool>>, injection: watch::Sender<Injection>) {
    loop {
        let (wanted, now) = {
            let (found, live) = (inputs.found.borrow_and_update(), inputs.live.borrow_and_update());
            let answering = found.as_ref().is_some_and(|found| found.endpoints.answering > 0);
            let off = *inputs.off.borrow_and_update();
            judge(off.unwrap_or_default(), live.as_ref().filter(|_| off.is_some()), answering)
        };
        policies.send_if_modified(|sent| std::mem::replace(sent, wanted) != wanted);
        injection.send_if_modified(|sent| std::mem::replace(sent, now) != now);
        let changed = tokio::select! {
            changed = inputs.found.changed() => changed,
            changed = inputs.live.changed() => changed,
            changed = inputs.off.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Returns whether pods should wait, and whether new pods are injected.
///
/// Pods should wait only if the API server calls the webhook of `held` namespaces, and injection is enabled. `None`
/// leaves the policies unchanged: the configurations or the state of the kill switch are unknown, or the configurations
/// lack the entry for `held` namespaces, which the controller will soon add. Such a short failure must not release pods
/// without injection.
fn judge(off: bool, live: Option<&Live>, answering: bool) -> (Option<bool>, Injection) {
    let Some(live) = live else { return (None, Injection::Silent) };
    if off || live.disabled {
        return (Some(false), Injection::SwitchedOff);
    }
    let path = FailureMode::Held.path();
    let mut entries = live.mutating.iter().flat_map(|mutating| mutating.webhooks.iter().flatten());
    let is_called = entries
        .any(|entry| entry.client_config.service.as_ref().is_some_and(|service| service.path.as_deref() == Some(path)));
    let injection = if answering && is_called { Injection::Answering } else { Injection::Silent };
    (is_called.then_some(true), injection)
}

#[cfg(test)]
mod tests {
    use pillion_api::webhook_configuration::{Settings, mutating};

    use super::*;

    fn live(failure_modes: &[FailureMode], disabled: bool) -> Live {
        let settings = Settings { failure_modes: failure_modes.to_vec(), ..Settings::new("pillion-system", "") };
        Live { mutating: Some(mutating(&settings)), disabled, ..Live::default() }
    }

    #[test]
    fn pods_wait_for_a_called_webhook() {
        let all = live(&FailureMode::ALL, false);
        assert_eq!(judge(false, Some(&all), true), (Some(true), Injection::Answering));
        // Pods also wait while the webhook does not respond.
        assert_eq!(judge(false, Some(&all), false), (Some(true), Injection::Silent));
    }

    #[test]
    fn damaged_configuration_changes_no_policy() {
        let damaged = live(&[FailureMode::Enabled], false);
        for there in [None, Some(&damaged), Some(&Live::default())] {
            assert_eq!(judge(false, there, true), (None, Injection::Silent));
        }
    }

    #[test]
    fn no_pod_waits_while_injection_is_disabled() {
        let (all, disabled) = (live(&FailureMode::ALL, false), live(&FailureMode::ALL, true));
        assert_eq!(judge(true, Some(&all), true), (Some(false), Injection::SwitchedOff));
        assert_eq!(judge(false, Some(&disabled), true), (Some(false), Injection::SwitchedOff));
    }
}
