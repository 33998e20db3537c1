//! Selects which lines are logged. The policy file can change the level at run time. A signal raises it for ten
//! minutes, for administrators who cannot change the file or wait for the change.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// The default level.
pub(crate) const DEFAULT_LEVEL: &str = "info";

/// Targets that are off unless the level enables them by name. The Kubernetes client logs each failed request a second
/// time, without context. The spans of requests are only for traces.
const QUIET: &str = "kube_client=off,pillion_trace=off";

/// The level after the signal. It includes each decision, and debug lines only of this program.
const DETAILED: &str = "info,pillion=debug,pillion_webhook=debug,pillion_control=debug,pillion_engine=debug";

/// How long the detailed level lasts.
const DETAILED_FOR: Duration = Duration::from_mins(10);

/// Arguments for logging.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logs")]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
pub(crate) struct LogArgs {
    /// Format of log lines, which go to standard error.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "PILLION_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
    /// Log level: error, warn, info, debug, trace or off; also by module, as in "info,pillion_control=debug". Default:
    /// the level in the policy file, else info. By default, dev also logs each decision.
    #[arg(long, global = true, env = "PILLION_LOG_LEVEL", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

impl LogArgs {
    /// Returns these arguments with the default level `warn`, for interactive commands that call an API server.
    pub(crate) fn for_interactive(&self) -> Self {
        Self { log_level: Some(self.log_level.clone().unwrap_or_else(|| "warn".to_owned())), ..self.clone() }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The log settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Logs {
    /// The log level, for all modules or for each module, as in `info,pillion_control=debug`.
    #[schemars(extend("expected" = "`error`, `warn`, `info`, `debug`, `trace`, `off`, or by module"))]
    pub(crate) level: String,
}

impl Default for Logs {
    fn default() -> Self {
        Self { level: DEFAULT_LEVEL.to_owned() }
    }
}

/// Returns the filter for a level, such as `info` or `info,pillion_control=debug`.
///
/// # Errors
/// The level is invalid.
pub(crate) fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(format!("{QUIET},{level}")).map_err(|error| {
        anyhow::anyhow!(
            "{level:?} is not a log level ({error}): expected error, warn, info, debug, trace or off, or a list as in \
             \"info,pillion_control=debug\""
        )
    })
}

/// Returns the layer that writes lines to standard error.
pub(crate) fn layer(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    }
}

/// A handle to change the active level.
#[derive(Clone, Debug)]
pub(crate) struct LogLevel(Arc<LevelState>);

#[derive(Debug)]
struct LevelState {
    filter: reload::Handle<EnvFilter, Registry>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The level of the policy.
    configured: String,
    is_detailed: bool,
}

impl LogLevel {
    /// Returns a filter that can change at run time, and the handle to change it.
    ///
    /// # Errors
    /// The level is invalid.
    pub(crate) fn new(level: &str) -> anyhow::Result<(reload::Layer<EnvFilter, Registry>, Self)> {
        let (layer, handle) = reload::Layer::new(filter(level)?);
        let state = Mutex::new(State { configured: level.to_owned(), is_detailed: false });
        Ok((layer, Self(Arc::new(LevelState { filter: handle, state }))))
    }

    /// Changes the level. While the detailed level is active, the change is applied when that level ends.
    pub(crate) fn set(&self, level: &str) {
        self.change(|state| level.clone_into(&mut state.configured));
    }

    fn detail(&self, is_detailed: bool) {
        self.change(|state| state.is_detailed = is_detailed);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let level = if state.is_detailed { DETAILED } else { &state.configured };
        let changed = filter(level).and_then(|filter| Ok(self.0.filter.reload(filter)?));
        drop(state);
        if let Err(error) = changed {
            warn!(%error, "the log level is unchanged");
        }
    }

    /// Installs the handler of SIGUSR1. After that, SIGUSR1 no longer ends the process.
    ///
    /// # Errors
    /// The operating system rejects the handler.
    pub(crate) fn signal() -> anyhow::Result<Signal> {
        signal(SignalKind::user_defined1()).context("cannot listen for SIGUSR1")
    }

    /// On each signal, enables the detailed level for [`DETAILED_FOR`], or disables it if it is active.
    pub(crate) async fn follow(self, signal: Signal, stop: CancellationToken) {
        self.follow_for(DETAILED_FOR, signal, stop).await;
    }

    async fn follow_for(self, time: Duration, mut signal: Signal, stop: CancellationToken) {
        let mut until: Option<Instant> = None;
        loop {
            let over = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                received = signal.recv() => {
                    if received.is_none() {
                        return;
                    }
                    until = if until.is_none() { Some(Instant::now() + time) } else { None };
                }
                () = over => until = None,
            }
            self.detail(until.is_some());
            if until.is_some() {
                info!(level = DETAILED, minutes = time.as_secs() / 60, "SIGUSR1: logging in detail for a while");
            } else {
                info!("the configured log level is active again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn invalid_level_is_named() {
        let error = filter("info,pillion=loud").unwrap_err().to_string();
        assert!(error.contains("pillion=loud") && error.contains("expected error, warn"), "{error}");
    }

    fn shown(level: &LogLevel) -> String {
        level.0.filter.with_current(ToString::to_string).unwrap()
    }

    #[tokio::test]
    async fn signal_toggles_detailed_level() {
        let (layer, level) = LogLevel::new("warn").unwrap();
        let _guard = tracing::subscriber::set_default(Registry::default().with(fmt::layer().with_filter(layer)));
        let (stop, signal) = (CancellationToken::new(), LogLevel::signal().unwrap());
        // Longer than the test needs to send the next signal, even on a busy machine.
        let time = Duration::from_secs(5);
        let following = tokio::spawn(level.clone().follow_for(time, signal, stop.clone()));
        let raise = || {
            let pid = std::process::id().to_string();
            assert!(std::process::Command::new("kill").args(["-USR1", &pid]).status().unwrap().success());
        };
        let becomes = async |detailed: bool| {
            let is_so = || shown(&level).contains("pillion_webhook=debug") == detailed;
            let end = Instant::now() + Duration::from_mins(1);
            while !is_so() {
                assert!(Instant::now() < end, "not {detailed}: {}", shown(&level));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        raise();
        becomes(true).await;
        level.set("error");
        assert!(shown(&level).contains("pillion_webhook=debug"), "the policy's level applies after the detailed level");
        raise();
        becomes(false).await;
        assert!(shown(&level).contains("error"), "{}", shown(&level));
        raise();
        becomes(true).await;
        becomes(false).await;
        stop.cancel();
        following.await.unwrap();
    }
}
