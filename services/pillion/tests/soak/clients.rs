//! What comes to a replica, each kind of it a task.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::soak::target::{Target, check_injected, review};
use crate::soak::{KIB, MIB};

/// The API server's part: reviews of all sizes on connections that are kept.
pub(crate) async fn good(target: Rc<Target>, client: usize) {
    const SIZES: [usize; 8] = [KIB, 2 * KIB, 4 * KIB, 6 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB];
    let mut connection = target.connect().await;
    let mut number = client * 1_000_000;
    while target.goes_on() {
        number += 1;
        let updates = number % 10 == 9;
        // Large ones are rare.
        let size = SIZES[if number.is_multiple_of(20) { 7 } else { number % 7 }];
        let body = review(number, if updates { "UPDATE" } else { "CREATE" }, size).to_string();
        let path = ["/mutate/enabled", "/mutate"][number % 2];
        let answer = target.ask(&mut connection, path, "application/json", body.as_bytes()).await;
        if updates {
            let review: Json = serde_json::from_slice(&answer.body).unwrap();
            assert!(review["response"]["allowed"] == true && review["response"].get("patch").is_none(), "{review}");
            target.count("updates");
        } else {
            check_injected(&target, number, &answer);
            target.count("injected");
        }
        if answer.closes {
            connection = target.connect().await;
            target.count("connections that were to be renewed");
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whatever is wrong, one after the other.
pub(crate) async fn bad(target: Rc<Target>) {
    let text = review(0, "CREATE", KIB).to_string();
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let cases: [(&str, &str, &str, u16); 8] = [
        ("/mutate", "application/json", "", 400),
        ("/mutate", "application/json", "{}", 400),
        ("/mutate", "application/json", &text[..text.len() / 2], 400),
        ("/mutate", "application/json", &deep, 400),
        ("/mutate", "text/plain", &text, 415),
        ("/nowhere", "application/json", &text, 404),
        ("/mutate/enabled", "application/json", &text.replace("\"uid-0\"", "\"\""), 400),
        ("/mutate", "application/json", &" ".repeat(7 * MIB + 1), 413),
    ];
    let mut connection = target.connect().await;
    for number in 0.. {
        if !target.goes_on() {
            break;
        }
        // The one of 7 MiB is rare.
        let (path, kind, body, status) = cases[if number % 100 == 0 { 7 } else { number % 7 }];
        let answer = target.ask(&mut connection, path, kind, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
        target.count("bad requests");
        if answer.closes {
            connection = target.connect().await;
        }
        sleep(Duration::from_millis(40)).await;
    }
}

/// Clients that come for one request, or for none.
pub(crate) async fn churn(target: Rc<Target>) {
    for number in 9_000_000.. {
        if !target.goes_on() {
            break;
        }
        let mut connection = target.connect().await;
        if number % 2 == 0 {
            let body = review(number, "CREATE", KIB).to_string();
            let answer = target.ask(&mut connection, "/mutate/enabled", "application/json", body.as_bytes()).await;
            check_injected(&target, number, &answer);
            target.count("injected");
        }
        target.count("connections that came and went");
        drop(connection);
        sleep(Duration::from_millis(60)).await;
    }
}

/// Clients that break off: in a handshake, a head, a body, before the answer; and those that speak no TLS.
pub(crate) async fn abort(target: Rc<Target>) {
    let body = review(0, "CREATE", 100 * KIB).to_string();
    let head = format!(
        "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), body.as_bytes()].concat();
    for number in 0_usize.. {
        if !target.goes_on() {
            break;
        }
        match number % 5 {
            0 => {
                let mut tcp = TcpStream::connect(&target.address).await.unwrap();
                tcp.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
            }
            1 => {
                let mut tcp = TcpStream::connect(&target.address).await.unwrap();
                tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            }
            cut => {
                let mut connection = target.connect().await;
                let end = [20, head.len() + 50_000, request.len()][cut - 2];
                connection.write_all(&request[..end]).await.unwrap();
                let _ = connection.flush().await;
            }
        }
        target.count("requests that were broken off");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Somebody who makes up namespaces: each is looked up at the API server, as far as that is bounded.
pub(crate) async fn forged(target: Rc<Target>) {
    let mut connection = target.connect().await;
    for number in 0.. {
        if !target.goes_on() {
            break;
        }
        let mut review = review(number, "CREATE", KIB);
        review["request"]["namespace"] = json!(format!("nowhere-{number}"));
        let answer = target.ask(&mut connection, "/mutate", "application/json", review.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200);
        target.count("made up namespaces");
        if answer.closes {
            connection = target.connect().await;
        }
        sleep(Duration::from_millis(25)).await;
    }
}
