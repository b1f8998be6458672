package lowkey

// Version is the version of this SDK. It goes in step with that of the service.
const Version = "0.1.0"
