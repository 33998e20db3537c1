//! Waits for a condition with a time limit, instead of sleeping for a guessed time.

use std::time::{Duration, Instant};

use anyhow::anyhow;

/// The pause between two checks of something local, such as a file or a process.
pub(crate) const POLL: Duration = Duration::from_millis(25);
/// The first and the longest pause between attempts. Each pause is 1.5 times as long as the previous one, up to the
/// longest. Most attempts call the API server, and too many calls would delay the awaited condition.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Repeats `attempt` until it returns `Ok`, for at most `limit`. Returns the value of the successful attempt.
///
/// A failed attempt returns its reason as an error. The final error contains the reason of the last attempt that ended
/// by itself. An attempt that hangs is cancelled when the limit is reached.
///
/// # Errors
/// `what` did not become true within `limit`.
pub async fn eventually<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    let mut last = anyhow!("the first attempt did not finish");
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            // The timeout cancelled the attempt. The deadline is checked below.
            Err(_) => {}
        }
        // The deadline is checked after each failed attempt, so a limit of zero still permits one attempt.
        if Instant::now() >= deadline {
            return Err(last.context(format!("{what}: not within {limit:?}; last attempt")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_first_success() {
        let mut attempts = 0;
        let value = eventually(Duration::from_secs(5), "three attempts", async || {
            attempts += 1;
            if attempts < 3 { Err(anyhow!("only {attempts}")) } else { Ok(attempts) }
        })
        .await
        .unwrap();
        assert_eq!(value, 3);
    }

    #[tokio::test]
    async fn timeout_reports_condition_and_last_reason() {
        let wait = eventually::<()>(Duration::from_millis(60), "the pod is there", || async { Err(anyhow!("404")) });
        let error = format!("{:#}", wait.await.unwrap_err());
        assert!(error.contains("the pod is there: not within 60ms; last attempt: 404"), "{error}");
    }

    #[tokio::test]
    async fn hanging_attempt_is_cut_off() {
        let wait = eventually::<()>(Duration::from_millis(20), "an answer", std::future::pending);
        let error = format!("{:#}", wait.await.unwrap_err());
        assert!(error.contains("the first attempt did not finish"), "{error}");
    }
}
