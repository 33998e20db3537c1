//! A process that runs out of file descriptors: who is connected is served, who comes waits, and all is well once some are
//! free again.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{Program, eventually, post};

/// The limit of the process, of which some 30 are taken when it starts.
const FILES: &str = "64";
const CLIENTS: usize = 100;
/// How long it is out of descriptors.
const WHILE: Duration = Duration::from_secs(2);

/// One scrape on a connection that stays.
fn scrape(stream: &mut BufReader<TcpStream>) -> String {
    stream.get_mut().write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the connection ends");
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = text.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn metric(scrape: &str, series: &str) -> f64 {
    scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok()).unwrap()
}

/// Seconds of computing that a process has had.
fn computed(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = [11, 12].into_iter().map(|field| fields.get(field).unwrap().parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

#[test]
fn running_out_of_descriptors_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let dev = Program::start_under(&["sh", "-c", "ulimit -n \"$0\" && exec \"$@\"", FILES], &arguments, folder.path());
    let authority = dev.word_behind("--cacert ");
    let sample = std::fs::read_to_string(dev.word_behind("--data @")).unwrap();
    let url = format!("https://{}", dev.word_behind("https://"));
    let address = url.strip_prefix("https://").unwrap().split('/').next().unwrap().replace("localhost", "127.0.0.1");
    let operations = dev.word_behind("http://").split('/').next().unwrap().replace("localhost", "127.0.0.1");
    let mut scraper = BufReader::new(TcpStream::connect(&operations).unwrap());
    assert!(metric(&scrape(&mut scraper), "pillion_accept_errors_total") < 0.5);
    assert_eq!(post(&url, authority.as_ref(), &sample).status, 200);

    // Accepted by the kernel, all of them; by the process, as many as it has descriptors for.
    let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(&address).unwrap()).collect();
    eventually("it has no descriptor left", || {
        (metric(&scrape(&mut scraper), "pillion_accept_errors_total") > 0.5).then_some(())
    });
    let (before, began) = (computed(dev.id()), Instant::now());
    let errors = metric(&scrape(&mut scraper), "pillion_accept_errors_total");
    std::thread::sleep(WHILE);
    let errors = metric(&scrape(&mut scraper), "pillion_accept_errors_total") - errors;
    let busy = (computed(dev.id()) - before) / began.elapsed().as_secs_f64();
    println!("{errors} errors in {WHILE:?}, {:.1} per cent of a core", busy * 100.0);
    // Twenty a second and some, for as long as it took: the machine may have had no time for this test.
    let most = 30.0 * began.elapsed().as_secs_f64();
    assert!((1.0..=most).contains(&errors), "{errors} errors of {most} at most: it does not rest between two");
    assert!(busy < 0.5, "it runs in circles");
    let told = dev.stderr().lines().filter(|line| line.contains("no connection can be accepted")).count();
    assert!((1..=4).contains(&told), "told {told} times: {}", dev.stderr());

    drop(clients);
    eventually("the next one is served", || (post(&url, authority.as_ref(), &sample).status == 200).then_some(()));
    assert!(metric(&scrape(&mut scraper), "pillion_tls_handshakes_total{result=\"ok\"}") > 1.5);
}
