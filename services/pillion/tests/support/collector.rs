//! A fake trace collector in the test process, for checks that are impossible with the real collector: it exposes the
//! received requests with their headers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A collector that stores all requests and their headers.
#[derive(Clone, Default)]
pub(crate) struct FakeCollector {
    sent: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    headers: Arc<Mutex<Vec<(String, String)>>>,
}

#[tonic::async_trait]
impl TraceService for FakeCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let headers = request.metadata().clone().into_headers();
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or("").to_owned()));
        self.headers.lock().unwrap().extend(headers);
        self.sent.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl FakeCollector {
    /// Starts a collector on a loopback port. It runs as long as the runtime.
    pub(crate) fn start(runtime: &tokio::runtime::Runtime) -> (Self, SocketAddr) {
        let collector = Self::default();
        // The port is bound immediately, so that no other process can get it.
        let incoming = {
            let _inside = runtime.enter();
            TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
        };
        let address = incoming.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        runtime.spawn(server.serve_with_incoming(incoming));
        (collector, address)
    }

    /// Returns all requests received so far.
    pub(crate) fn all(&self) -> Vec<ExportTraceServiceRequest> {
        self.sent.lock().unwrap().clone()
    }

    /// Returns the spans with this name.
    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        let resources = self.all().into_iter().flat_map(|request| request.resource_spans);
        let spans = resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        spans.filter(|span| span.name == name).collect()
    }

    /// Returns the values of a header, one for each request that contains it.
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        let headers = self.headers.lock().unwrap();
        headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.clone()).collect()
    }
}
