module github.com/rstored/rstored

go 1.26
