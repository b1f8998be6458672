package lowkey

// Version is the version of this SDK. It goes in step with that of the service.
const Version = "1.0.0-rc.1"
